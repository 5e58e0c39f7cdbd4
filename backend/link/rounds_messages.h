// The runtime's types as the messages of proto/link_rounds.proto, and back: what comes from the
// other process is checked here.
#ifndef PELTON_BACKEND_LINK_ROUNDS_MESSAGES_H_
#define PELTON_BACKEND_LINK_ROUNDS_MESSAGES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backend/model.h"
#include "comm/transport/descriptor.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"
#include "core/round/slot_state.h"
#include "proto/link_rounds.pb.h"

namespace pelton {

link::LinkStatus ToMessage(const absl::Status& status);
absl::Status FromMessage(const link::LinkStatus& message);

// How long a wait may last, for a clock of another process. Negative ones are none.
int64_t NanosOf(absl::Duration timeout);
absl::Duration DurationOf(int64_t nanos);

link::MakeModel ToMessage(const ModelOptions& options, absl::Span<const TensorSpec> tensors);
// Threads: a value. Owns: copies.
struct ModelQuestion {
  ModelOptions options;
  std::vector<TensorSpec> tensors;
};
// Errors: FailedPrecondition: another version; InvalidArgument: a number that means nothing, named.
absl::StatusOr<ModelQuestion> FromMessage(const link::MakeModel& message);

// States, with their elements in memory that both processes can read. Errors: those of the kernel.
struct StatesInMemory {
  link::LinkStates states;
  Descriptor memory;
};
absl::StatusOr<StatesInMemory> ToMemory(absl::Span<const SlotState> states);
// A copy. Errors: InvalidArgument: slots above `slot_count`, types that there are not, or more
// bytes than the memory has.
absl::StatusOr<std::vector<SlotState>> FromMemory(const link::LinkStates& states, int memory,
                                                  size_t slot_count);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_ROUNDS_MESSAGES_H_
