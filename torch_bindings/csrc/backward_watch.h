// Notices backward passes by the gradients that they accumulate, whatever made the loss: a forward
// pass in training mode or not, a method, a function of tensors that no hook has seen.
#ifndef PELTON_TORCH_BINDINGS_CSRC_BACKWARD_WATCH_H_
#define PELTON_TORCH_BINDINGS_CSRC_BACKWARD_WATCH_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace pelton::torch_bindings {

// The node of autograd's that writes a parameter's gradient.
// Owns the node. Which kind of pointer depends on PyTorch's version.
using GradAccumulatorPtr =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// What is done when the outermost backward ends, in an order that does not depend on which caller
// asked first.

// In this order, each for all models before the next for any: ranks may run several models in one
// backward in different orders, and where one waits for a model that another rank has not launched
// yet, because it waits for the other model first, both would wait for ever.
enum class EndStage : uint8_t {
  kLaunch,  // the rest of a round
  kSettle,  // what must be through before a round ends
  kWait,    // for it
  kAdopt,   // what the ranks agreed on after it
  kAfter,   // whatever needs complete rounds
};

// Queues `callback` with the backward that runs on this thread. Exceptions of a callback leave the
// backward, and those that have not run are dropped. Called without the GIL.
void QueueAtEnd(EndStage stage, std::function<void()> callback);

// A backward pass begins with the first gradient that it accumulates into one of the parameters,
// and ends with the outermost backward. What torch.autograd.grad computes is none. Threads: the
// trainer's; hooks run on autograd's thread while the trainer waits in backward. Called without the
// GIL. Owns: its hooks.
class BackwardWatch : public std::enable_shared_from_this<BackwardWatch> {
 public:
  struct Callbacks {
    std::function<void()> began;  // before hooks that were added later see the first gradient
    // Once its gradients are there, or those of an inner one, before rounds are waited for. May be
    // empty.
    std::function<void()> ends = nullptr;
    // After what other callbacks for the end of backward do. `may_go_on`: another backward may
    // follow that needs the weights as they are, of the same graph or of a forward pass whose
    // outputs live and which none has reached.
    std::function<void(bool may_go_on)> ended;
  };

  // Exceptions of the callbacks leave the backward pass.
  static std::shared_ptr<BackwardWatch> Create(const std::vector<at::Tensor>& parameters,
                                               Callbacks callbacks);
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;
  ~BackwardWatch();

  // Tensors with gradient functions that a forward pass returned: the backward that comes by one of
  // them is the outermost, even if its gradients come from inner ones (re-entrant checkpointing).
  void WatchOutputs(const std::vector<at::Tensor>& outputs);

  // Ends a backward pass of which no end was seen, because its gradients came from inner ones and
  // no output was watched. Called outside of backward.
  void Settle();

  // Idempotent.
  void Detach();

 private:
  explicit BackwardWatch(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void Hook(const at::Tensor& parameter);
  void OnGradient();
  void QueueEnd();
  void OnSettle();
  void OnEnd();
  // Whether outputs are alive that no backward has come by.
  bool AwaitsAnother();

  Callbacks callbacks_;
  // By forward pass: whether a backward has come by its outputs, which own it.
  std::vector<std::weak_ptr<bool>> reached_;
  std::vector<std::pair<GradAccumulatorPtr, uintptr_t>> hooks_;
  bool is_in_backward_ = false;
  bool is_left_by_inner_ = false;  // an inner backward has ended, and the outer one may go on
  std::weak_ptr<void> queued_;     // alive while a backward holds the callback for its end
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_BACKWARD_WATCH_H_
