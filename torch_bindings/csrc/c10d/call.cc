#include "torch_bindings/csrc/c10d/call.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

// Copies of so much are made by whoever drives. Some tens of microseconds: as long as it may take
// until another thread drives instead.
constexpr int64_t kMostBytesInline = int64_t{256} << 10;

bool LiesAsItIs(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// From the tensor's first element to its last; what lies between may be somebody else's.
absl::Span<const std::byte> SpanOf(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  size_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += static_cast<size_t>((tensor.size(i) - 1) * tensor.stride(i));
  }
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          (last + 1) * tensor.element_size()};
}

at::Tensor EmptyLike(int64_t count, const at::Tensor& like) {
  return at::empty({count}, like.options().requires_grad(false));
}

// The stream of the thread that copies is none that the caller's own stream comes after.
void AwaitCopyTo(const at::Tensor& target) {
  if (target.device().is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(target.device().type());
  guard.synchronizeStream(guard.getStream(target.device()));
}

}  // namespace

lane::Job::Launch LaunchOf(const CollectiveCall& collective, const OnStream& on_stream) {
  return [collective, stream = on_stream](Communicator& communicator) mutable {
    return LaunchCollective(communicator, collective, PointerTo(stream));
  };
}

lane::Job::Launch SendOf(Tensor source, Rank destination, int32_t tag) {
  return [=](Communicator& communicator) { return Send(communicator, source, destination, tag); };
}

lane::Job::Launch RecvOf(Tensor target, Rank source, int32_t tag) {
  return [=](Communicator& communicator) { return Recv(communicator, target, source, tag); };
}

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
  const bool is_served = takes_gpu_ || tensor.device().is_cpu();
  if (use_ == Use::kMoved && is_served && !ToDType(tensor.scalar_type()).ok()) {
    return {tensor.data_ptr(), static_cast<uint64_t>(tensor.nbytes()), DType::kUInt8};
  }
  absl::StatusOr<Tensor> flat =
      takes_gpu_ ? FlatAnywhere(tensor, argument) : Flat(tensor, argument);
  if (!flat.ok()) Refuse(std::string(flat.status().message()));
  return *flat;
}

bool Call::IsWritten(const at::Tensor& tensor) const {
  return std::any_of(written_.begin(), written_.end(), [&](const at::Tensor& written) {
    return Overlap(SpanOf(tensor), SpanOf(written));
  });
}

at::Tensor Call::Keeps(const at::Tensor& tensor, const std::string& argument) {
  Check(tensor, argument);
  at::Tensor packed = tensor.detach().resolve_conj().resolve_neg().contiguous();
  if (IsWritten(packed)) packed = packed.clone();
  kept_.push_back(packed);
  return packed;
}

Tensor Call::Reads(const at::Tensor& tensor, const std::string& argument) {
  return FlatOf(Keeps(tensor, argument), argument);
}

Tensor Call::Writes(const at::Tensor& tensor, const std::string& argument) {
  Check(tensor, argument);
  written_.push_back(tensor);
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

// Whether the copies are better made beside the other calls of the group.
bool Call::FinishLasts() const {
  int64_t bytes = 0;
  for (const auto& [target, source] : copies_) {
    if (!target.is_cpu() || !source.is_cpu()) return true;  // it waits for a device
    bytes += static_cast<int64_t>(target.nbytes());
  }
  return last_lasts_ || bytes > kMostBytesInline;
}

// Tensors made in inference mode may be written there only, and the queue's thread is not in it.
lane::Job Call::Take(absl::Duration timeout) {
  job_.deadline = Clock::Real().Now() + timeout;
  job_.timeout = timeout;
  job_.finish_lasts = FinishLasts();
  job_.finish = [kept = std::move(kept_), copies = std::move(copies_),
                 last = std::move(last_)]() mutable {
    for (const auto& [target, source] : copies) {
      std::optional<c10::InferenceMode> inference;
      if (target.is_inference()) inference.emplace();
      target.copy_(source.view(target.sizes()));
      AwaitCopyTo(target);
    }
    if (last) last();
  };
  return std::move(job_);
}

}  // namespace pelton::torch_bindings
