#include "torch_bindings/csrc/c10d/call.h"

#include <ATen/ops/empty.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

bool LiesAsItIs(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor EmptyLike(int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().requires_grad(false));
}

}  // namespace

void Call::Refuse(const std::string& what) const {
  ThrowStatus(absl::InvalidArgumentError(absl::StrCat(job_.name, ": ", what)));
}

void Call::Check(const at::Tensor& tensor, const std::string& argument) const {
  if (!tensor.defined()) Refuse(absl::StrCat(argument, ": None"));
  if (tensor.layout() != at::kStrided) {
    Refuse(
        absl::StrCat(argument, ": a sparse tensor cannot be communicated; call to_dense() first"));
  }
}

Tensor Call::FlatOf(const at::Tensor& tensor, const std::string& argument) const {
  if (use_ == Use::kMoved && tensor.device().is_cpu() && !ToDType(tensor.scalar_type()).ok()) {
    return {tensor.data_ptr(), static_cast<uint64_t>(tensor.nbytes()), DType::kUInt8};
  }
  absl::StatusOr<Tensor> flat = Flat(tensor, argument);
  if (!flat.ok()) Refuse(std::string(flat.status().message()));
  return *flat;
}

Tensor Call::Reads(const at::Tensor& tensor, const std::string& argument) {
  Check(tensor, argument);
  const at::Tensor packed = tensor.detach().resolve_conj().resolve_neg().contiguous();
  kept_.push_back(packed);
  return FlatOf(packed, argument);
}

Tensor Call::Writes(const at::Tensor& tensor, const std::string& argument) {
  Check(tensor, argument);
  if (LiesAsItIs(tensor)) {
    kept_.push_back(tensor);
    return FlatOf(tensor, argument);
  }
  const at::Tensor packed = Scratch(tensor.numel(), tensor);
  CopyAtEnd(tensor, packed);
  return FlatOf(packed, argument);
}

Tensor Call::Updates(const at::Tensor& tensor, const std::string& argument) {
  const Tensor target = Writes(tensor, argument);
  if (!LiesAsItIs(tensor)) kept_.back().view(tensor.sizes()).copy_(tensor.detach());
  return target;
}

at::Tensor Call::Scratch(int64_t count, const at::Tensor& like) {
  kept_.push_back(EmptyLike(count, like));
  return kept_.back();
}

void Call::CopyAtEnd(const at::Tensor& target, const at::Tensor& source) {
  copies_.emplace_back(target.detach(), source);
}

Job Call::Take(absl::Time deadline) {
  job_.deadline = deadline;
  job_.finish = [kept = std::move(kept_), copies = std::move(copies_)] {
    for (const auto& [target, source] : copies) target.copy_(source.view(target.sizes()));
  };
  return std::move(job_);
}

}  // namespace pelton::torch_bindings
