// A model as people see it from outside.
#ifndef PELTON_BACKEND_MODEL_SIGHT_H_
#define PELTON_BACKEND_MODEL_SIGHT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/round/round_sight.h"

namespace pelton {

// Threads: a value. Owns: its texts.
struct ModelSight {
  std::string name;
  absl::StatusOr<RoundSight> round;  // an error: why it is not known
  uint64_t sent_bytes = 0;
};

// Blocks: until `deadline`.
using ModelLook = std::function<ModelSight(absl::Time deadline)>;

}  // namespace pelton

#endif  // PELTON_BACKEND_MODEL_SIGHT_H_
