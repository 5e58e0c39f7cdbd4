// One parameter of a wrapped model: its hook, and its place in a bucket.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SLOT_H_
#define PELTON_TORCH_BINDINGS_CSRC_SLOT_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/round/schedule.h"
#include "torch_bindings/csrc/backward_watch.h"
#include "torch_bindings/csrc/shared_allocator.h"

namespace pelton::torch_bindings {

// What a model communicates of a parameter: its gradient, an optimizer's moment that is made of
// that, or itself. Subclasses say how the tensor gets into the bucket and the result out. Threads:
// the backward's hooks and the trainer, never at once. Owns: a reference to the parameter and to
// its gradient accumulator, which autograd itself only holds weakly; the hook, until Unhook.
class Slot {
 public:
  // `tensor` has the dtype and the shape of what is communicated.
  Slot(std::string name, at::Tensor parameter, const at::Tensor& tensor);
  virtual ~Slot() { Unhook(); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // Calls `on_gradient` after each accumulation into the parameter's gradient, on autograd's
  // thread; `arrived`: backward made a gradient and not an undefined one.
  void Hook(std::function<void(bool arrived)> on_gradient);
  void Unhook();

  // "" while the parameter is what it was when it was registered, else what changed. A frozen one
  // is not changed: it counts as unused until it is thawed.
  std::string Change() const;

  // Says where the slot's memory in the bucket is, on the parameter's device or else on the host;
  // `owner` keeps it alive, also for a user who holds on to the tensor. Null: the slot is a
  // segment, which may lie anywhere in shared memory.
  void Bind(void* memory, at::Device device, std::shared_ptr<void> owner);
  // The tensor, if there is one yet, moves into the bucket.
  virtual void Adopt() = 0;

  // Brings the tensor, whose gradient is final, to where it can be communicated, and returns that
  // place. The gradient is defined. Errors: InvalidArgument: the gradient is sparse or not on the
  // parameter's device; names the parameter.
  virtual absl::StatusOr<void*> Place() = 0;
  // The same where this backward made no gradient.
  virtual absl::StatusOr<void*> PlaceUnused() = 0;
  // Before any slot of the round is merged. Errors: FailedPrecondition: the memory that was
  // communicated is no longer the tensor's, and may be another one's; names the parameter.
  virtual absl::Status CheckMerge() const { return absl::OkStatus(); }
  // After the round: hands the result over. `used_by_any`: some rank had a tensor.
  virtual void Merge(const CommitRule& rule, bool used_by_any) = 0;
  // The tensor, and every other one that lies in the bucket, gets memory of its own with what it
  // holds, because the bucket is no longer the slot's.
  void Release();

  // Whether the gradient is still the result of an earlier round, which later backwards have
  // accumulated onto.
  virtual bool HoldsResult() const { return false; }

  // Knows whether the gradient is the result of a round, as the slot of the same parameter knew in
  // an earlier registration.
  virtual void TakeOver(const Slot&) {}
  // Of the parameter, to tell whether two slots are of the same one.
  const void* identity() const { return parameter_.unsafeGetTensorImpl(); }

  bool is_segment() const { return is_segment_; }
  // Whether the bucket is in the host's memory and the parameter is not: then tensors are copied
  // there and back, and the host waits for each copy from the device.
  bool is_staged() const { return device_.is_cpu() && !parameter_device_.is_cpu(); }
  bool has_gradient() const { return parameter_.grad().defined(); }
  bool requires_grad() const { return parameter_.requires_grad(); }
  // Whether the user's hooks run within each accumulation, before Hook's.
  bool has_hooks_of_users() const;
  // Whether the backward that runs on this thread, which was asked for some gradients only,
  // accumulates into the parameter's.
  bool IsWanted() const;
  // Whether the parameter itself was written to since: an optimizer that steps within backward
  // does. Where a user's hook could do so by `.data`, which autograd does not count, elements are
  // looked at: all of a small parameter, 64 of a large one.
  void RememberVersion();
  bool WasWritten() const;
  // Changes when the parameter is written to; by `.data`, which counts no version, only where
  // `looks` and one of its first values changes.
  uint64_t Fingerprint(bool looks) const;
  const std::string& name() const { return name_; }
  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t copied_bytes() const { return copied_bytes_; }

  // Set by an accumulation that no round has communicated yet: a local one (no_sync), or one that
  // others of the same round may follow.
  bool is_dirty = false;
  // Whether the open round has had a gradient of it.
  bool has_come = false;
  // Whether a backward may accumulate into it several times: a layer that re-entrant checkpointing
  // runs more than once.
  bool is_repeated = false;

 protected:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  const at::Tensor& parameter() const { return parameter_; }
  at::ScalarType dtype() const { return dtype_; }
  // Of the slot's memory; undefined before EnsureMemory where that is a segment. Nobody else gets
  // to see it, because users may give a tensor of theirs other memory (`p.grad.data = x`). Where
  // they have given other memory to the storage object, which it shares with what they see
  // (`p.grad.share_memory_()`, or a queue between processes that the gradient is put on), that
  // object is theirs, and this is made anew.
  at::Tensor& view();
  // A tensor of its own over the memory of `tensor`.
  static at::Tensor AliasOf(const at::Tensor& tensor);
  // Gives a segment memory that can be communicated.
  absl::Status EnsureMemory();
  // The same before other values are put there: tensors that lie in the slot's memory, which users
  // may have kept, get memory of their own with what they hold. Costs a comparison where there are
  // none.
  absl::Status EnsureWritable();
  // Errors: InvalidArgument, as Place.
  absl::Status CheckGradient() const;
  // Whether `tensor` can be copied as one block, and be replaced by the view.
  bool HasLayoutOfView(const at::Tensor& tensor) const;
  bool LiesInBucket(const at::Tensor& tensor) { return LiesAt(tensor, view()); }
  // Whether it is `place`, a tensor with the layout of the view or an undefined one, in all but
  // name.
  bool LiesAt(const at::Tensor& tensor, const at::Tensor& place) const;
  void CopyIn(const at::Tensor& tensor);

 private:
  void MakeView(void* memory);
  // Whether users' tensors lie in the slot's memory.
  bool IsHeld();
  void MoveHolders();
  uint64_t Sample() const;

  const std::string name_;
  const at::Tensor parameter_;
  const at::ScalarType parameter_dtype_;
  const at::ScalarType dtype_;
  const at::Device parameter_device_;
  at::Device device_ = at::kCPU;  // of the slot's memory
  const std::vector<int64_t> sizes_;
  const std::vector<int64_t> strides_;  // of the view
  const uint64_t size_bytes_;
  GradAccumulatorPtr accumulator_;
  uintptr_t hook_key_ = 0;
  bool is_segment_ = false;
  // A segment's stays where it is born. Any other one is copied from there: its block serves the
  // next one, where new memory of the system's would fault in each backward.
  std::optional<ExpectedGradient> expected_;
  uint32_t version_ = 0;  // of the parameter, see RememberVersion
  bool is_sampled_ = false;
  uint64_t sample_ = 0;
  // Of the slot's memory, which stays while it is communicated, whatever becomes of the tensors.
  std::shared_ptr<void> owner_;
  void* memory_ = nullptr;  // where the view was made; its storage may be elsewhere by now
  at::Tensor view_;         // the only one of its storage until an alias of it is handed out
  uint64_t copied_bytes_ = 0;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SLOT_H_
