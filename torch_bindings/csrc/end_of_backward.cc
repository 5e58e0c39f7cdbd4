#include "torch_bindings/csrc/end_of_backward.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace pelton::torch_bindings {

// The engine runs its callbacks in the order in which they came, also those that come meanwhile. So
// all that were queued before the end run once, and queue what is of a later stage behind each
// other: stage n runs after n passes, whoever queued it.
void QueueAtEnd(EndStage stage, std::function<void()> callback) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (stage == EndStage::kLaunch) return engine.queue_callback(std::move(callback));
  const auto before = static_cast<EndStage>(static_cast<int>(stage) - 1);
  engine.queue_callback([before, callback = std::move(callback)] { QueueAtEnd(before, callback); });
}

}  // namespace pelton::torch_bindings
