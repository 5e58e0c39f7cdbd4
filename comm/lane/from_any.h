// A receive from whichever rank has sent.
#ifndef PELTON_COMM_LANE_FROM_ANY_H_
#define PELTON_COMM_LANE_FROM_ANY_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "comm/collectives.h"
#include "comm/communicator.h"

namespace pelton::lane {

// The launch of a job that is_from_any. `source` is whose message it receives into `target`.
// Threads: the driver's. Blocks: never. Errors: ResourceExhausted: no message has come;
// Unavailable: and none will, because all other ranks have left; those of Recv.
inline absl::StatusOr<Completion> RecvFromAny(Communicator& communicator, Tensor target,
                                              int32_t tag, std::atomic<int>& source) {
  const absl::StatusOr<std::optional<Rank>> sender = communicator.FindSender(tag);
  if (absl::IsNotFound(sender.status())) return absl::UnavailableError(sender.status().message());
  if (!sender.ok()) return sender.status();
  if (!sender->has_value()) return absl::ResourceExhaustedError("no message has come");
  source.store((*sender)->value());
  return Recv(communicator, target, **sender, tag);
}

}  // namespace pelton::lane

#endif  // PELTON_COMM_LANE_FROM_ANY_H_
