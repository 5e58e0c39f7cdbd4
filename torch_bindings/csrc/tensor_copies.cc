#include "torch_bindings/csrc/tensor_copies.h"

#include <c10/core/CPUAllocator.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fork.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

void TensorCopies::DropShare(void* share) { delete static_cast<SharedMemory*>(share); }

TensorCopies::SharedMemory TensorCopies::ShareOf(const at::Tensor& tensor) {
  at::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const at::DataPtr& data = storage->data_ptr();
  if (data.get_deleter() == &DropShare) return *static_cast<SharedMemory*>(data.get_context());
  auto memory = std::make_shared<at::DataPtr>();
  *memory = storage->set_data_ptr(
      at::DataPtr(data.get(), new SharedMemory(memory), &DropShare, data.device()));
  return memory;
}

bool TensorCopies::MayCopy(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.has_storage() || !tensor.is_contiguous() ||
      tensor.const_data_ptr() == nullptr) {
    return false;
  }
  const at::DeleterFnPtr deleter = tensor.storage().data_ptr().get_deleter();
  return deleter == &DropShare || deleter == c10::GetDefaultCPUAllocator()->raw_deleter();
}

void TensorCopies::Begin(const Parts& parts, const at::Tensor& target) {
  ThrowIfError(CheckNotForkedChild());
  std::vector<CopyBeside::Part> raw;
  std::vector<SharedMemory> memory;
  for (const auto& [source, offset] : parts) {
    if (!MayCopy(source) || !target.is_contiguous() || offset > target.nbytes() ||
        source.nbytes() > target.nbytes() - offset) {
      ThrowStatus(absl::InvalidArgumentError(
          absl::StrCat("copies: tensor ", raw.size(), " of ", source.nbytes(), " bytes at ", offset,
                       ", in a target of ", target.nbytes(),
                       ": must lie in memory of PyTorch's own without gaps, and fit")));
    }
    memory.push_back(ShareOf(source));
    raw.push_back({static_cast<const std::byte*>(source.const_data_ptr()),
                   static_cast<std::byte*>(target.data_ptr()) + offset, source.nbytes()});
  }
  // The copying thread may not be told; then the thread that waits makes the copy.
  copies_.Begin(std::move(raw)).IgnoreError();
  memory_ = std::move(memory);  // an earlier copy's is at rest now
  target_ = target;
}

std::optional<size_t> TensorCopies::Finish(absl::Time deadline) {
  ThrowIfError(copies_.Wait(deadline));
  const std::optional<size_t> changed = copies_.FindChanged();
  Abandon();
  return changed;
}

void TensorCopies::Abandon() {
  copies_.Abandon();
  memory_.clear();
  target_.reset();
}

}  // namespace pelton::torch_bindings
