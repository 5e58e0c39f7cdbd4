#include "torch_bindings/csrc/weight_bucket.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/status_error.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

constexpr int64_t kAlignmentBytes = 64;

void Check(const std::vector<at::Tensor>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Device device = parameter.device();
    if (!device.is_cpu() && !IsGpu(device)) {
      ThrowStatus(absl::InvalidArgumentError(
          absl::StrCat("parameter ", i, ": is on ", device.str(),
                       "; move the model to the CPU or to a GPU before the optimizer is made")));
    }
    if (device != parameters[0].device()) {
      ThrowStatus(absl::InvalidArgumentError(absl::StrCat(
          "parameter ", i, ": is on ", device.str(), " by now, and others of its bucket on ",
          parameters[0].device().str(),
          "; make the optimizer anew, on all ranks, after a part of the model was moved")));
    }
    if (parameter.scalar_type() != parameters[0].scalar_type()) {
      ThrowStatus(absl::InvalidArgumentError(absl::StrCat(
          "parameter ", i, ": is of ", c10::toString(parameter.scalar_type()), " by now, and ",
          "others of its bucket of ", c10::toString(parameters[0].scalar_type()),
          "; make the optimizer anew, on all ranks, after types were changed")));
    }
  }
}

at::Tensor EmptyFlat(int64_t count, const at::Tensor& like) {
  if (like.device().is_cpu()) return EmptyShared({count}, like.scalar_type());
  return at::empty({count}, like.options().requires_grad(false));
}

// Tells autograd, as an operation in place does, that what was saved for a backward pass is gone.
void NoteChange(const at::Tensor& parameter) {
  if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

WeightBucket::WeightBucket(std::vector<at::Tensor> parameters)
    : buffers_(std::make_shared<Buffers>()) {
  Check(parameters);
  const c10::AutoGradMode no_grad(false);
  const at::ScalarType type = parameters[0].scalar_type();
  const int64_t step = kAlignmentBytes / static_cast<int64_t>(c10::elementSize(type));
  std::vector<int64_t> begins;
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters) {
    begins.push_back(count);
    count += (parameter.numel() + step - 1) / step * step;
  }
  for (at::Tensor& flat : buffers_->flat) flat = EmptyFlat(count, parameters[0]).zero_();
  slots_.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Slot slot{std::move(parameters[i]), {}};
    const at::Tensor& parameter = slot.parameter;
    for (size_t side = 0; side < 2; ++side) {
      slot.places[side] =
          buffers_->flat[side].narrow(0, begins[i], parameter.numel()).view(parameter.sizes());
    }
    slot.places[side_].copy_(parameter.detach());
    if (MayMove(parameter)) MoveTo(slot, side_);
    slots_.push_back(std::move(slot));
  }
}

bool WeightBucket::Fits() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.parameter.sizes() == slot.places[0].sizes() &&
           slot.parameter.scalar_type() == slot.places[0].scalar_type() &&
           slot.parameter.device() == slot.places[0].device();
  });
}

at::Tensor WeightBucket::Gather() {
  const c10::AutoGradMode no_grad(false);
  for (const Slot& slot : slots_) {
    if (!LiesIn(slot, side_)) slot.places[side_].copy_(slot.parameter.detach());
  }
  return buffers_->flat[side_];
}

void WeightBucket::Adopt() {
  const c10::AutoGradMode no_grad(false);
  const size_t other = 1 - side_;
  const bool moves = std::all_of(slots_.begin(), slots_.end(), [this](const Slot& slot) {
    return !LiesIn(slot, side_) || slot.parameter.storage().use_count() == 1;
  });
  for (const Slot& slot : slots_) {
    if (moves && LiesIn(slot, side_)) {
      MoveTo(slot, other);
      NoteChange(slot.parameter);
    } else {
      slot.parameter.detach().copy_(slot.places[other]);  // notes the change
    }
  }
  if (moves) side_ = other;
}

bool WeightBucket::MayMove(const at::Tensor& parameter) {
  const c10::Storage& storage = parameter.storage();
  return parameter.numel() > 0 && parameter.is_contiguous() && parameter.storage_offset() == 0 &&
         storage.nbytes() == parameter.nbytes() && storage.resizable() && storage.use_count() == 1;
}

bool WeightBucket::LiesIn(const Slot& slot, size_t side) const {
  return slot.parameter.numel() > 0 && slot.parameter.is_contiguous() &&
         slot.parameter.const_data_ptr() == slot.places[side].const_data_ptr();
}

void WeightBucket::MoveTo(const Slot& slot, size_t side) const {
  using Hold = std::shared_ptr<Buffers>;
  const auto let_go = [](void* held) {
    if (!IsForkedChild()) delete static_cast<Hold*>(held);
  };
  slot.parameter.storage().set_data_ptr_noswap(
      c10::DataPtr(slot.places[side].data_ptr(), std::make_unique<Hold>(buffers_).release(), let_go,
                   slot.places[side].device()));
}

}  // namespace pelton::torch_bindings
