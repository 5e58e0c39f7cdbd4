#include "torch_bindings/csrc/mapped_memory.h"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/cuda/shared_library.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

constexpr unsigned kPortableAndMapped = 1 | 2;  // cudaHostRegisterPortable, cudaHostRegisterMapped
constexpr size_t kPageBytes = 4096;

// What is not in CudaRuntime's table, because nothing else needs it. Threads: any. Owns: nothing.
struct Mapping {
  int (*host_register)(void* memory, size_t size_bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  int (*host_get_device_pointer)(void** there, void* memory, unsigned flags);
};

template <typename Function>
absl::Status Bind(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.Symbol(name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("CUDA runtime ", library.path(), " has no ", name));
}

absl::StatusOr<Mapping> FindMapping(const cuda::CudaRuntime& runtime) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Find({runtime.path(), {}, ""}));
  Mapping mapping;
  RETURN_IF_ERROR(Bind(library, "cudaHostRegister", mapping.host_register));
  RETURN_IF_ERROR(Bind(library, "cudaHostUnregister", mapping.host_unregister));
  RETURN_IF_ERROR(Bind(library, "cudaHostGetDevicePointer", mapping.host_get_device_pointer));
  return mapping;
}

// Whole pages, because the driver maps pages, and each once. Threads: any. Owns: its memory and its
// place in the GPU's addresses.
class MappedMemory {
 public:
  static absl::StatusOr<std::shared_ptr<MappedMemory>> Make(size_t size_bytes) {
    ASSIGN_OR_RETURN(auto runtime, cuda::CudaRuntime::Load());
    ASSIGN_OR_RETURN(const Mapping mapping, FindMapping(*runtime));
    const size_t pages_bytes = (size_bytes / kPageBytes + 1) * kPageBytes;
    const auto block_bytes = static_cast<int64_t>(pages_bytes + kPageBytes);
    at::Tensor block = EmptyShared({block_bytes}, at::kByte);
    const auto begin = reinterpret_cast<uintptr_t>(block.data_ptr());
    const uintptr_t first = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* const data = reinterpret_cast<void*>(first);
    RETURN_IF_ERROR(runtime->ToStatus(mapping.host_register(data, pages_bytes, kPortableAndMapped),
                                      "cudaHostRegister"));
    std::shared_ptr<MappedMemory> memory(new MappedMemory(std::move(block), data, mapping));
    void* there = nullptr;
    RETURN_IF_ERROR(runtime->ToStatus(mapping.host_get_device_pointer(&there, data, 0),
                                      "cudaHostGetDevicePointer"));
    if (there == data) return memory;
    return absl::UnimplementedError(
        "tensor: this GPU has other addresses for the host's memory, so that no tensor of it can "
        "lie there; make the window of tensor.cpu()");
  }
  ~MappedMemory() {
    if (!IsForkedChild()) mapping_.host_unregister(data_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const { return data_; }

 private:
  MappedMemory(at::Tensor block, void* data, const Mapping& mapping)
      : block_(std::move(block)), data_(data), mapping_(mapping) {}

  const at::Tensor block_;
  void* const data_;
  const Mapping mapping_;
};

using Hold = std::shared_ptr<MappedMemory>;

void LetGo(void* held) { delete static_cast<Hold*>(held); }

at::Tensor HostTensorOver(const Hold& memory, const at::Tensor& like) {
  return at::from_blob(
      memory->data(), like.sizes(), [memory](void*) {},
      at::TensorOptions().dtype(like.scalar_type()));
}

}  // namespace

absl::StatusOr<at::Tensor> MoveToMappedMemory(const at::Tensor& tensor) {
  RETURN_IF_ERROR(FlatAnywhere(tensor, "tensor").status());
  const c10::Storage& storage = tensor.storage();
  if (storage.data_ptr().get_deleter() == &LetGo) {
    return HostTensorOver(*static_cast<Hold*>(storage.data_ptr().get_context()), tensor);
  }
  if (tensor.storage_offset() != 0 || storage.nbytes() != tensor.nbytes() || !storage.resizable()) {
    return absl::InvalidArgumentError(
        "tensor: is a part of other memory of the GPU, and a window's memory is the host's; pass a "
        "tensor of its own, such as tensor.clone()");
  }
  ASSIGN_OR_RETURN(Hold memory, MappedMemory::Make(tensor.nbytes()));
  at::Tensor host = HostTensorOver(memory, tensor);
  host.copy_(tensor.detach());
  void* const data = memory->data();
  storage.set_data_ptr_noswap(c10::DataPtr(
      data, std::make_unique<Hold>(std::move(memory)).release(), &LetGo, tensor.device()));
  return host;
}

}  // namespace pelton::torch_bindings
