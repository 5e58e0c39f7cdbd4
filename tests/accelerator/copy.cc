#include "tests/accelerator/copy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include "tests/accelerator/memory.h"
#include "tests/accelerator/runtime.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

at::Tensor Readable(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  SynchronizeCurrent(tensor.device());
  return OnHost(tensor);
}

}  // namespace

at::Tensor OnHost(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::empty_like(tensor, tensor.options().device(at::kCPU));
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

void Copy(const at::Tensor& source, const at::Tensor& target) {
  if (target.numel() == 0) return;
  const at::AutoDispatchBelowADInplaceOrView only_data;
  const at::Tensor readable = Readable(source);
  if (!target.is_privateuseone()) {
    target.copy_(readable);
    return;
  }
  // The source may be gone or changed when the stream gets there.
  const at::Tensor staged = readable.to(target.scalar_type(), false, true);
  const c10::Stream stream = CurrentStream(target.device());
  RecordStream(target.storage().data_ptr(), stream);
  Runtime::Get().Push(HandleOf(stream), [staged, written = OnHost(target)] {
    const at::AutoDispatchBelowADInplaceOrView only_data_there;
    written.copy_(staged);
  });
}

}  // namespace pelton::accelerator
