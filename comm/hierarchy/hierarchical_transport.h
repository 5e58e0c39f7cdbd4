// One transport for all ranks of a job: shared memory inside a host, a wire between hosts.
#ifndef PELTON_COMM_HIERARCHY_HIERARCHICAL_TRANSPORT_H_
#define PELTON_COMM_HIERARCHY_HIERARCHICAL_TRANSPORT_H_

#include <memory>
#include <vector>

#include "comm/collectives/selection.h"
#include "comm/hierarchy/stages.h"
#include "comm/transport/transport.h"

namespace pelton {

// `host_of[r]` is the number of the host of world rank r, from 0, the same list on all ranks.
// Threads: a value. Owns: its list and transports.
struct HierarchyOptions {
  Rank rank;                           // in the world
  std::vector<int32_t> host_of;        // by world rank
  std::unique_ptr<Transport> inside;   // of the ranks of this host: its rank i is the i-th of
                                       // them in the world's order
  std::unique_ptr<Transport> between;  // of all ranks of the world; needs only sends and
                                       // receives; null where there is one host
  SelectionTable table = SelectionTable::Default();
  KindSet staged_kinds = hierarchy::kStagedKinds;  // the others run by a flat recipe
};

// Threads: as Transport; UseTable as Open. Owns: as Transport.
class HostsTransport : public Transport {
 public:
  // The communicator `id` goes by `table` and not by that of the options. Before its Open, with the
  // same table on all of its ranks.
  virtual void UseTable(CommunicatorId id, SelectionTable table) = 0;
};

// Opens for a group the cheapest communicator that its places allow: that of `inside` for a group
// on one host, recipes over `between` for one rank per host, else the hierarchical composition:
//   allreduce   reduce of slice l onto local rank l, allreduce of the slice among the l-th ranks of
//               all hosts, broadcast of the slice from local rank l: for L = the fewest ranks on a
//               host there are L slices. Bytes a host sends: twice (H - 1) / H of the tensor, for H
//               hosts. Segments of the tensor follow each other, so that both wires are busy.
//   broadcast, reduce, allgather, reduce_scatter, barrier   in the same manner
//   send, recv, and the messages of any other collective   each takes the wire that reaches its
//   peer
// The mean is the mean over ranks: sums travel, and the result is divided once.
std::unique_ptr<HostsTransport> MakeHierarchicalTransport(HierarchyOptions options);

}  // namespace pelton

#endif  // PELTON_COMM_HIERARCHY_HIERARCHICAL_TRANSPORT_H_
