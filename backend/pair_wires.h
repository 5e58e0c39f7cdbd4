// Wires between two ranks each, which the loss of a third rank does not end.
#ifndef PELTON_BACKEND_PAIR_WIRES_H_
#define PELTON_BACKEND_PAIR_WIRES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/transport/transport.h"
#include "core/base/ids.h"

namespace pelton {

// A transport of its own beside those of a backend, whose session ends all of those when a rank is
// lost. Here the end of a rank ends what it has a part in, as soon as the wire tells.
// Threads: one at a time. Owns: the transport; the backend outlives it.
class PairWires {
 public:
  // Collective over the group, in the same order on all its ranks. Blocks: until all have called,
  // or `deadline`. Errors: those of CheckGroup and of ConnectWire; Unimplemented: the backend's
  // wires are a daemon's (backend/link).
  static absl::StatusOr<std::unique_ptr<PairWires>> Connect(Backend& backend, const Group& group,
                                                            absl::Time deadline);

  // Opens a communicator of this rank and `peer`, by its place in the group, which both call, with
  // the same `attempt` and another one at each call for the same pair. It must be destroyed before
  // this object. Blocks: until both have called, or `deadline`. Errors: those of CheckGroup and of
  // Transport::Open; why the job has failed.
  absl::StatusOr<std::unique_ptr<Communicator>> Open(Rank peer, uint32_t attempt,
                                                     absl::Time deadline);

 private:
  PairWires(Backend& backend, Rank rank, WorldSize group_size, std::unique_ptr<Transport> transport)
      : backend_(backend), rank_(rank), group_size_(group_size), transport_(std::move(transport)) {}

  Backend& backend_;
  const Rank rank_;  // its place in the group
  const WorldSize group_size_;
  const std::unique_ptr<Transport> transport_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_PAIR_WIRES_H_
