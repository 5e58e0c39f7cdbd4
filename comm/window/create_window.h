// Making a window on all ranks of a group.
#ifndef PELTON_COMM_WINDOW_CREATE_WINDOW_H_
#define PELTON_COMM_WINDOW_CREATE_WINDOW_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/window/peer_link.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// Collective over `communicator`, with the same names in the same order on all ranks. Ranks are
// those of the communicator. A rank whose tensor others may not read gets a window with home(): its
// tensor's bytes are there already, and the caller has to use that memory as the tensor from now
// on. Blocks: until all have called, or `deadline`. Errors: InvalidArgument: the ranks' names,
// shapes or dtypes differ, or an edge has one end only; named on every rank, and no rank has a
// window then; Unimplemented: an edge goes to a far rank, and `links` is null; ResourceExhausted;
// those of the communicator and of PeerLinks::Connect.
absl::StatusOr<std::unique_ptr<Window>> CreateWindow(Communicator& communicator,
                                                     std::shared_ptr<const PeerProcesses> processes,
                                                     WindowOptions options,
                                                     const MovingDeadline& deadline,
                                                     std::shared_ptr<PeerLinks> links = nullptr);

// Where the ranks of one process are taken to be, by rank. Threads: a value. Owns: its lists.
struct HostsHere {
  std::vector<int32_t> host_of;
  std::vector<std::shared_ptr<PeerLinks>> links;  // shared: as Window's
  // What `rank` finds when it is about to reach a near `peer`, as PeerProcesses::Check; null: all
  // live.
  std::function<absl::Status(Rank rank, Rank peer)> check = nullptr;
};

// The same for all ranks at once, in one process: for simulations. By rank. `hosts` null: all are
// on one.
absl::StatusOr<std::vector<std::unique_ptr<Window>>> CreateWindowsHere(
    std::vector<WindowOptions> options, const HostsHere* hosts = nullptr);

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_CREATE_WINDOW_H_
