// One parameter of a wrapped model: its hook, and where its gradient lies.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/memory/region.h"

namespace pelton::torch_bindings {

// Threads: the backward's hooks and the trainer, never at once. Owns: a reference to the parameter
// and to its gradient accumulator, which autograd itself only holds weakly; the hook, until Unhook.
class GradientSlot {
 public:
  GradientSlot(std::string name, at::Tensor parameter);
  ~GradientSlot() { Unhook(); }
  GradientSlot(const GradientSlot&) = delete;
  GradientSlot& operator=(const GradientSlot&) = delete;

  // Calls `on_gradient` after each accumulation into the parameter's gradient, on autograd's
  // thread.
  void Hook(std::function<void()> on_gradient);
  void Unhook();

  // "" while the parameter is what it was when it was registered, else what changed. A frozen one
  // is not changed: it counts as unused until it is thawed.
  std::string Change() const;

  // Says where the slot's memory in the bucket is; `owner` keeps it alive, also for a user who
  // holds on to a gradient. Null: the slot is a segment, whose gradient may lie anywhere in shared
  // memory.
  void Bind(void* memory, std::shared_ptr<void> owner);
  // A gradient that exists moves into the bucket.
  void Adopt();

  // Brings the gradient to where it can be communicated, and returns that place: it stays if it
  // lies there already, else it is copied once into the bucket and the parameter's gradient becomes
  // a view of the bucket. The gradient is defined. Errors: InvalidArgument: it is sparse or not on
  // the CPU; names the parameter.
  absl::StatusOr<void*> Place();
  // Contributes zeros or, where a gradient exists that all ranks share already, that gradient.
  absl::StatusOr<void*> PlaceUnused();
  // After the round: makes the result the parameter's gradient. `used_by_any`: some rank had a
  // gradient.
  void Collect(bool used_by_any);
  // The gradient gets memory of its own, because the bucket is no longer the slot's.
  void Release();

  // Whether the gradient is still the result of an earlier round, which later backwards have
  // accumulated onto.
  bool HoldsResult() const;

  bool is_segment() const { return is_segment_; }
  bool has_gradient() const { return parameter_.grad().defined(); }
  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t copied_bytes() const { return copied_bytes_; }

  // Set by a local (no_sync) accumulation that no round has communicated yet.
  bool is_dirty = false;

 private:
  template <typename Deleter>
  void MakeView(void* memory, Deleter deleter);
  absl::Status EnsureMemory();
  void CopyIn(const at::Tensor& gradient);
  bool LiesInBucket(const at::Tensor& gradient) const;
  bool HasLayoutOfParameter(const at::Tensor& gradient) const;

  const std::string name_;
  const at::Tensor parameter_;
  const at::ScalarType dtype_;
  const std::vector<int64_t> sizes_;
  uint64_t size_bytes_;
  std::shared_ptr<torch::autograd::Node> accumulator_;
  uintptr_t hook_key_ = 0;
  void* memory_ = nullptr;
  bool is_segment_ = false;
  bool owns_memory_ = false;  // of a segment whose gradient was not born in shared memory
  at::Tensor view_;           // of the slot's memory in the bucket
  at::Tensor kept_;           // what the gradient was, to be put back if no rank used the parameter
  bool copy_back_ =
      false;  // the gradient carries a graph of its own and cannot be replaced by the view
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  WeakTensor result_;  // the gradient that the last round left
  uint64_t copied_bytes_ = 0;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_GRADIENT_SLOT_H_
