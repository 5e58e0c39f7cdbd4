#include "torch_bindings/csrc/python_windows.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/group.h"
#include "comm/window/peer_processes.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/cuda/shared_library.h"
#include "torch_bindings/csrc/status_error.h"
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

absl::StatusOr<Mapping> FindMapping(const cuda::CudaRuntime& runtime) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Find({runtime.path(), {}, ""}));
  Mapping mapping;
  RETURN_IF_ERROR(library.Bind("cudaHostRegister", mapping.host_register));
  RETURN_IF_ERROR(library.Bind("cudaHostUnregister", mapping.host_unregister));
  RETURN_IF_ERROR(library.Bind("cudaHostGetDevicePointer", mapping.host_get_device_pointer));
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

namespace {

std::vector<Rank> RanksOf(std::vector<int32_t> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::vector<Rank> ranks;
  for (const int32_t number : numbers) ranks.emplace_back(number);
  return ranks;
}

void Check(const absl::Status& status, const std::string& call) {
  ThrowIfError(Annotate(status, call));
}

// Keeps the memory of `tensor` for as long as the result lives, whatever becomes of the tensor:
// resize_() and share_memory_() give the storage itself other memory.
std::shared_ptr<const void> ShareMemory(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  void* const data = storage.mutable_data();
  const c10::Device device = storage.device();
  auto memory = std::make_shared<c10::DataPtr>();
  using Hold = std::shared_ptr<c10::DataPtr>;
  const auto let_go = [](void* held) { delete static_cast<Hold*>(held); };
  *memory = storage.set_data_ptr(
      c10::DataPtr(data, std::make_unique<Hold>(memory).release(), let_go, device));
  return memory;
}

// Why the storage of a rank's tensor cannot move to the window's memory; OK where it can. `on_host`
// is `given` where the CPU reads it.
absl::Status WhyImmovable(const at::Tensor& given, const at::Tensor& on_host) {
  if (IsGpu(given.device())) {
    return absl::InvalidArgumentError(
        "tensor: is on a GPU, and other ranks may not read this process's memory; permit that on "
        "this host (PELTON_PTRACE unset, kernel.yama.ptrace_scope 0 or 1), or make the window of "
        "tensor.cpu()");
  }
  const c10::Storage& storage = on_host.storage();
  const bool is_whole = on_host.storage_offset() == 0 && storage.nbytes() == on_host.nbytes();
  if (is_whole && storage.resizable()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "tensor: is a part of other memory, and other ranks may not read this process's memory; "
      "pass a tensor of its own, such as tensor.clone()");
}

// The storage of `tensor`, and with it every view of it, moves to the window's memory.
void MoveTo(const Window& window, const at::Tensor& tensor) {
  auto owner = std::make_unique<std::shared_ptr<const void>>(window.home_owner());
  const auto let_go = [](void* held) {
    if (!IsForkedChild()) delete static_cast<std::shared_ptr<const void>*>(held);
  };
  tensor.storage().set_data_ptr_noswap(
      c10::DataPtr(window.home(), owner.release(), let_go, c10::Device(c10::DeviceType::CPU)));
}

// `given` where the CPU reads it. PyTorch throws where there is no memory, on one rank maybe, and
// the others have to be told of that as of any other error.
absl::StatusOr<at::Tensor> OnHost(const at::Tensor& given) {
  if (!IsGpu(given.device())) return given;
  std::string reason;
  try {
    return MoveToMappedMemory(given);
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "tensor: its ", given.nbytes(), " bytes cannot be moved to memory of the host (", reason,
      "); free memory there, or make a smaller window, and call win_create again on all ranks"));
}

}  // namespace

void PythonWindow::Check(const absl::Status& status, const char* call) const {
  if (status.ok()) return;
  torch_bindings::Check(status, absl::StrCat(call, " of window '", window_->options().name, "'"));
}

MovingDeadline PythonWindow::Deadline() const {
  const absl::Time now = Clock::Real().Now();
  const absl::Duration timeout = backend_->options().operation_timeout;
  return {now + timeout, &backend_->absences().standstill(), now};
}

WindowAccess PythonWindow::Access(bool with_p) const {
  return {.with_p = with_p, .with_mutex = false, .deadline = Deadline()};
}

void PythonWindow::Put(const at::Tensor& source, const Neighbors& destinations, double own_weight,
                       bool with_p) {
  const Tensor flat = ValueOrThrow(Flat(source, "tensor"));
  Check(window_->Put(flat, destinations, own_weight, Access(with_p)), "win_put");
}

void PythonWindow::Accumulate(const at::Tensor& source, const Neighbors& destinations,
                              double own_weight, bool with_p) {
  const Tensor flat = ValueOrThrow(Flat(source, "tensor"));
  Check(window_->Accumulate(flat, destinations, own_weight, Access(with_p)), "win_accumulate");
}

void PythonWindow::Get(const Neighbors& sources) {
  Check(window_->Get(sources, Access(/*with_p=*/false)), "win_get");
}

void PythonWindow::Update(double own_weight, const Neighbors& sources, bool resets, bool with_p,
                          const std::optional<at::Tensor>& target) {
  Window::Update update;
  update.own_weight = own_weight;
  update.sources = sources;
  update.resets = resets;
  if (target.has_value()) {
    const Tensor flat = ValueOrThrow(Flat(*target, "target"));
    update.target = static_cast<std::byte*>(flat.data);
  }
  Check(window_->UpdateFromInlets(update, Access(with_p)), "win_update");
}

std::vector<std::pair<int32_t, uint32_t>> PythonWindow::Versions() const {
  std::vector<std::pair<int32_t, uint32_t>> versions;
  for (const auto& [rank, version] : window_->versions()) {
    versions.emplace_back(rank.value(), version);
  }
  return versions;
}

void PythonWindow::Lock(int32_t peer, bool of_own) {
  Check(window_->Lock(Rank(peer), of_own, Deadline()), "win_mutex");
}

void PythonWindow::Unlock(int32_t peer, bool of_own) {
  Check(window_->Unlock(Rank(peer), of_own), "win_mutex");
}

PythonWindows::PythonWindows(std::shared_ptr<Backend> backend, const std::vector<int32_t>& ranks)
    : backend_(std::move(backend)),
      windows_(ValueOrThrow(GroupWindows::Open(*backend_, Group::Of(ranks),
                                               backend_->options().operation_timeout))) {}

std::unique_ptr<PythonWindow> PythonWindows::Create(const std::string& name,
                                                    const at::Tensor& given,
                                                    const std::vector<int32_t>& sources,
                                                    const std::vector<int32_t>& destinations,
                                                    bool zero_init) {
  Communicator* const communicator = ValueOrThrow(windows_->communicator());
  const absl::StatusOr<at::Tensor> on_host = OnHost(given);
  const absl::StatusOr<Tensor> flat =
      on_host.ok() ? Flat(*on_host, "tensor") : absl::StatusOr<Tensor>(on_host.status());
  Check(AgreeOnStatus(*communicator, flat.status(), windows_->deadline()), "win_create");
  const at::Tensor& tensor = *on_host;
  WindowOptions options;
  options.name = name;
  options.tensor = *flat;
  options.shape = tensor.sizes().vec();
  options.sources = RanksOf(sources);
  options.destinations = RanksOf(destinations);
  options.zero_init = zero_init;
  options.immovable = WhyImmovable(given, tensor);
  absl::StatusOr<std::unique_ptr<Window>> window = windows_->Make(std::move(options));
  Check(window.status(), "win_create");
  if ((*window)->home() != nullptr) MoveTo(**window, tensor);
  return std::make_unique<PythonWindow>(*std::move(window), tensor, ShareMemory(tensor), backend_);
}

void PythonWindows::Barrier() {
  Communicator* const communicator = ValueOrThrow(windows_->communicator());
  const Completion completion = ValueOrThrow(pelton::Barrier(*communicator));
  const MovingDeadline deadline = windows_->deadline();
  Check(Await(*communicator, completion, deadline.At(Clock::Real().Now()), deadline.standstill()),
        "win_free");
}

}  // namespace pelton::torch_bindings
