// Stages with which the operations that a user appends to a bucket are made of registered
// algorithms' stages.
#ifndef PELTON_TORCH_BINDINGS_CSRC_USER_STAGES_H_
#define PELTON_TORCH_BINDINGS_CSRC_USER_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"
#include "torch_bindings/csrc/averaging_control.h"

namespace pelton::torch_bindings {

// Memory of a tensor of the user's.
struct UserMemory {
  std::byte* data = nullptr;
  uint64_t count = 0;  // elements, one after the other
  DType dtype = DType::kFloat32;
  // Keeps the tensor alive. Shared: the runtime knows no tensors, only that something must stay.
  std::shared_ptr<void> owner;
};

// Where each slot's tensor lies that is not in the bucket; set before the slot is marked.
using LiveMemory = std::vector<UserMemory>;
// By the name of the state's buffer.
using NamedMemory = std::vector<std::pair<std::string, UserMemory>>;

// What the stages of one bucket have made for tensors of the user's; those get it once the round is
// complete (COMMIT-1).
// Threads: the channel's while the round lasts, then the trainer's. Owns: the list; keeps the
// tensors alive.
class Outcomes {
 public:
  // `data` has the elements of `target` and stays as it is until Commit.
  void Add(const std::byte* data, UserMemory target);
  // What `memory` holds, or will once what was added last for it is there.
  const std::byte* LatestOf(const UserMemory& memory) const;
  void Commit();

 private:
  struct Outcome {
    const std::byte* data;
    UserMemory target;
  };
  std::vector<Outcome> outcomes_;
};

// Calls a function of the bucket's name; it may block. It looks at the user's tensors: what the
// stages before it have made for them is there, although the round may yet fail.
std::unique_ptr<Stage> MakeFunctionStage(std::function<absl::Status()> call,
                                         std::shared_ptr<Outcomes> outcomes);

// Does nothing: for a bucket without operations.
std::unique_ptr<Stage> MakeNothingStage();

// Of an operation whose outcome goes to `peer_weight` while the bucket stays as it was: the first
// stage keeps the bucket's elements, the last one puts them back and has the outcome.
struct AsideStages {
  std::unique_ptr<Stage> first;
  std::unique_ptr<Stage> last;
};
AsideStages MakeAsideStages(UserMemory peer_weight, std::shared_ptr<Outcomes> outcomes);

// `stage`, with the buffers of its state filled from the user's memory of the same name before;
// what they hold after it is the outcome for that. Errors, in Start: InvalidArgument: it keeps no
// buffer of that name.
std::unique_ptr<Stage> WithReplicas(std::unique_ptr<Stage> stage, NamedMemory replicas,
                                    std::shared_ptr<Outcomes> outcomes);

// Has all ranks agree on whether to stop: the control's is_running() is the answer.
std::unique_ptr<Stage> MakeAgreeToStopStage(std::shared_ptr<AveragingControl> control);
// `stage`, left out once the ranks have agreed to stop.
std::unique_ptr<Stage> UnlessStopped(std::unique_ptr<Stage> stage,
                                     std::shared_ptr<AveragingControl> control);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_USER_STAGES_H_
