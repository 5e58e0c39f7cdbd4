// Who exchanges with whom in a round, where ranks do so in pairs.
#ifndef PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_
#define PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_

#include <cstdint>
#include <optional>

#include "core/base/ids.h"

namespace pelton {

// A matching of a group's ranks for each step. Both ends must ask for the same step; then each is
// the other's peer. Steps count from 0.
// Threads: any. Owns: what its subclass says.
class PeerSource {
 public:
  virtual ~PeerSource() = default;

  // The peer of the rank that this source speaks for; that rank itself where it sits the step out;
  // nothing where the answer is not known here, which says nothing about the other ranks. Asked for
  // steps that never decrease. Blocks: never.
  virtual std::optional<Rank> PeerAt(uint64_t step) = 0;
  // `step` will be asked for soon: time to find out. Blocks: never.
  virtual void Prefetch(uint64_t step) {}
};

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_
