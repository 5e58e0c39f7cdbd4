#include "torch_bindings/csrc/slot.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "torch_bindings/csrc/shared_allocator.h"

namespace pelton::torch_bindings {
namespace {

// Autograd gives a gradient its parameter's strides where those are dense; else it is contiguous.
std::vector<int64_t> DenseStrides(const at::Tensor& tensor) {
  const bool dense = tensor.is_non_overlapping_and_dense();
  return (dense ? tensor : tensor.contiguous()).strides().vec();
}

}  // namespace

using torch::autograd::variable_list;

Slot::Slot(std::string name, at::Tensor parameter, const at::Tensor& tensor)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      parameter_dtype_(parameter_.scalar_type()),
      dtype_(tensor.scalar_type()),
      parameter_device_(parameter_.device()),
      sizes_(tensor.sizes().vec()),
      strides_(DenseStrides(tensor)),
      size_bytes_(static_cast<uint64_t>(tensor.numel()) * tensor.element_size()) {}

void Slot::Hook(std::function<void(bool arrived)> on_gradient) {
  accumulator_ = torch::autograd::impl::grad_accumulator(parameter_);
  PELTON_CHECK(accumulator_ != nullptr) << name_ << " does not require a gradient";
  hook_key_ = accumulator_->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [on_gradient = std::move(on_gradient)](const variable_list& outputs,
                                             const variable_list& inputs) {
        on_gradient(!inputs.empty() && inputs.front().defined());
        return outputs;
      }));
}

void Slot::Unhook() {
  if (accumulator_ == nullptr) return;
  accumulator_->del_post_hook(hook_key_);
  accumulator_ = nullptr;
}

bool Slot::has_hooks_of_users() const {
  return torch::autograd::impl::post_acc_grad_hooks(parameter_) != nullptr;
}

void Slot::RememberVersion() {
  version_ = parameter_._version();
  is_sampled_ = has_hooks_of_users();
  if (is_sampled_) sample_ = Sample();
}

bool Slot::WasWritten() const {
  return parameter_._version() != version_ || (is_sampled_ && Sample() != sample_);
}

// Of the parameter's bytes, in the host's memory; 0 where they are not in one block there.
uint64_t Slot::Sample() const {
  if (!parameter_.is_cpu() || !parameter_.is_non_overlapping_and_dense()) return 0;
  constexpr size_t kSmall = 4096;
  constexpr size_t kPieces = 64;
  const auto* const bytes = static_cast<const char*>(parameter_.data_ptr());
  const size_t size = parameter_.nbytes();
  if (size <= kSmall) return absl::HashOf(absl::string_view(bytes, size));
  uint64_t sum = 0;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t place = (size - sizeof(uint64_t)) / (kPieces - 1) * i;
    sum = absl::HashOf(sum, absl::string_view(bytes + place, sizeof(uint64_t)));
  }
  return sum;
}

uint64_t Slot::Fingerprint(bool looks) const {
  constexpr int64_t kLookedAt = 64;
  if (!looks) return parameter_._version();
  const c10::NoGradGuard no_grad;
  const at::Tensor first = parameter_.reshape({-1}).slice(0, 0, kLookedAt).to(at::kDouble);
  return absl::HashOf(parameter_._version(), first.sum().item<double>());
}

bool Slot::IsWanted() const {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr) return false;
  const auto found = wanted->find(accumulator_.get());
  return found != wanted->end() && found->second.needed_;
}

std::string Slot::Change() const {
  if (parameter_.scalar_type() != parameter_dtype_) {
    return absl::StrCat("dtype was ", c10::toString(parameter_dtype_), ", is ",
                        c10::toString(parameter_.scalar_type()));
  }
  if (parameter_.device() != parameter_device_) {
    return absl::StrCat("moved from ", parameter_device_.str(), " to ", parameter_.device().str());
  }
  if (parameter_.sizes() != at::IntArrayRef(sizes_)) return "its shape changed";
  // A cast replaces the accumulator, and the hook goes with it.
  if (accumulator_ != nullptr &&
      torch::autograd::impl::try_get_grad_accumulator(parameter_) != accumulator_) {
    return "its gradient accumulator was replaced";
  }
  return "";
}

void Slot::Bind(void* memory, at::Device device, std::shared_ptr<void> owner) {
  is_segment_ = memory == nullptr;
  device_ = device;
  owner_ = std::move(owner);
  view_ = at::Tensor();
  expected_.reset();
  if (!is_segment_) MakeView(memory);
  if (parameter_device_.is_cpu() && device_.is_cpu()) expected_.emplace(size_bytes_);
}

void Slot::MakeView(void* memory) {
  memory_ = memory;
  view_ = at::from_blob(
      memory, sizes_, strides_, [owner = owner_](void*) {},
      at::TensorOptions().dtype(dtype_).device(device_), device_);
}

at::Tensor& Slot::view() {
  if (view_.defined() && view_.storage().data() != memory_) MakeView(memory_);
  return view_;
}

absl::Status Slot::EnsureMemory() {
  if (view_.defined()) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* block, SharedPool().Allocate(std::max<uint64_t>(size_bytes_, 1)));
  owner_ = std::shared_ptr<void>(block, [](void* freed) { SharedPool().Free(freed); });
  MakeView(block);
  return absl::OkStatus();
}

at::Tensor Slot::AliasOf(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

// All tensors over a block of memory share one storage object.
bool Slot::IsHeld() { return view_.defined() && view().storage().use_count() > 1; }

absl::Status Slot::EnsureWritable() {
  if (IsHeld()) {
    if (is_segment_) {
      view_ = at::Tensor();  // the block is theirs
      owner_ = nullptr;
    } else {
      MoveHolders();
    }
  }
  return EnsureMemory();
}

// With other memory in their storage object they move, views of views as well.
void Slot::MoveHolders() {
  struct Kept {
    at::Tensor copy;
    std::shared_ptr<void> owner;  // code that has noted the address must not find it unmapped
  };
  const at::Tensor copy = view_.clone();
  view_.storage().set_data_ptr_noswap(c10::DataPtr(
      copy.data_ptr(), new Kept{copy, owner_}, [](void* kept) { delete static_cast<Kept*>(kept); },
      copy.device()));
  MakeView(memory_);
}

// The last reference may go while a garbage collection runs in the middle of torch.compile: an
// operation would be taken for one of the program that is traced, and fail.
void Slot::Release() {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::PythonDispatcher, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize}));
  if (!is_segment_ && IsHeld()) MoveHolders();
  view_ = at::Tensor();
  owner_ = nullptr;
}

absl::Status Slot::CheckGradient() const {
  const at::Tensor& gradient = parameter_.grad();
  if (gradient.layout() != at::kStrided) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name_,
        "' has a sparse gradient, which cannot be communicated; build it with sparse=False"));
  }
  if (gradient.device() != parameter_device_) {
    return absl::InvalidArgumentError(absl::StrCat("the gradient of parameter '", name_, "' is on ",
                                                   gradient.device().str(), ", the parameter on ",
                                                   parameter_device_.str()));
  }
  return absl::OkStatus();
}

bool Slot::LiesAt(const at::Tensor& tensor, const at::Tensor& place) const {
  return place.defined() && tensor.layout() == at::kStrided &&
         tensor.data_ptr() == place.data_ptr() && HasLayoutOfView(tensor);
}

bool Slot::HasLayoutOfView(const at::Tensor& tensor) const {
  return tensor.device() == device_ && tensor.scalar_type() == dtype_ &&
         tensor.sizes() == at::IntArrayRef(sizes_) && tensor.strides() == at::IntArrayRef(strides_);
}

void Slot::CopyIn(const at::Tensor& tensor) {
  if (HasLayoutOfView(tensor) && tensor.device().is_cpu()) {
    std::memcpy(view().data_ptr(), tensor.data_ptr(), size_bytes_);
  } else {
    c10::NoGradGuard no_grad;
    view().copy_(tensor);
  }
  copied_bytes_ += size_bytes_;
}

}  // namespace pelton::torch_bindings
