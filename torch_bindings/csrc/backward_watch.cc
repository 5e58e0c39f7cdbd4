#include "torch_bindings/csrc/backward_watch.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include "core/base/check.h"

namespace pelton::torch_bindings {

// The engine runs its callbacks in the order in which they came, also those that come meanwhile. So
// all that were queued before the end run once, and queue what is of a later stage behind each
// other: stage n runs after n passes, whichever model queued it.
void QueueAtEnd(EndStage stage, std::function<void()> callback) {
  auto& engine = torch::autograd::Engine::get_default_engine();
  if (stage == EndStage::kLaunch) return engine.queue_callback(std::move(callback));
  const auto before = static_cast<EndStage>(static_cast<int>(stage) - 1);
  engine.queue_callback([before, callback = std::move(callback)] { QueueAtEnd(before, callback); });
}

using torch::autograd::variable_list;

std::shared_ptr<BackwardWatch> BackwardWatch::Create(const std::vector<at::Tensor>& parameters,
                                                     Callbacks callbacks) {
  std::shared_ptr<BackwardWatch> watch(new BackwardWatch(std::move(callbacks)));
  for (const at::Tensor& parameter : parameters) watch->Hook(parameter);
  return watch;
}

BackwardWatch::~BackwardWatch() { Detach(); }

void BackwardWatch::Hook(const at::Tensor& parameter) {
  GradAccumulatorPtr accumulator = torch::autograd::impl::grad_accumulator(parameter);
  PELTON_CHECK(accumulator != nullptr) << "a parameter does not require a gradient";
  const uintptr_t key =
      accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this](const variable_list& outputs, const variable_list&) {
            OnGradient();
            return outputs;
          }));
  hooks_.emplace_back(std::move(accumulator), key);
}

void BackwardWatch::WatchOutputs(const std::vector<at::Tensor>& outputs) {
  // A forward within a backward (checkpointing recomputes the model): that backward is the one.
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  const auto reached = std::make_shared<bool>(false);
  for (const at::Tensor& output : outputs) {
    output.register_hook([weak = weak_from_this(), reached](const at::Tensor&) {
      *reached = true;
      if (std::shared_ptr<BackwardWatch> self = weak.lock()) self->QueueEnd();
    });
  }
  (void)AwaitsAnother();  // forgets the old ones
  if (!outputs.empty()) reached_.push_back(reached);
}

// Called for each gradient, and does nothing but for the first one of a backward.
void BackwardWatch::OnGradient() {
  const bool goes_on = is_in_backward_ && (is_left_by_inner_ || !queued_.expired());
  QueueEnd();
  if (goes_on) return;
  // Where the last one is still open, an exception ended it.
  is_in_backward_ = true;
  is_left_by_inner_ = false;
  callbacks_.began();
}

// The backward that is running owns the callback: should it fail, the token goes with it.
void BackwardWatch::QueueEnd() {
  if (!queued_.expired()) return;
  const auto token = std::make_shared<bool>(true);
  queued_ = token;
  QueueAtEnd(EndStage::kSettle, [weak = weak_from_this()] {
    if (std::shared_ptr<BackwardWatch> self = weak.lock()) self->OnSettle();
  });
  QueueAtEnd(EndStage::kAfter, [weak = weak_from_this(), token] {
    if (std::shared_ptr<BackwardWatch> self = weak.lock()) self->OnEnd();
  });
}

void BackwardWatch::OnSettle() {
  if (callbacks_.ends != nullptr) callbacks_.ends();
}

void BackwardWatch::OnEnd() {
  queued_.reset();
  if (!is_in_backward_) return;
  is_left_by_inner_ = torch::autograd::get_current_node() != nullptr;
  if (is_left_by_inner_) return;
  is_in_backward_ = false;
  callbacks_.ended(torch::autograd::get_current_graph_task_keep_graph() || AwaitsAnother());
}

bool BackwardWatch::AwaitsAnother() {
  std::erase_if(reached_, [](const std::weak_ptr<bool>& forward) {
    const std::shared_ptr<bool> reached = forward.lock();
    return reached == nullptr || *reached;
  });
  return !reached_.empty();
}

void BackwardWatch::Settle() {
  if (!is_in_backward_ || !is_left_by_inner_) return;
  is_in_backward_ = is_left_by_inner_ = false;
  callbacks_.ended(false);
}

void BackwardWatch::Detach() {
  for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
  hooks_.clear();
}

}  // namespace pelton::torch_bindings
