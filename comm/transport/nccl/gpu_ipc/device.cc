#include "comm/transport/nccl/gpu_ipc/device.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"
#include "core/memory/dtype.h"

namespace pelton::cuda {
absl::StatusOr<IpcTable> FindIpcCalls(const CudaRuntime& runtime) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Find({runtime.path(), {}, ""}));
  IpcTable table;
  RETURN_IF_ERROR(library.Bind("cudaIpcGetMemHandle", table.get_memory_handle));
  RETURN_IF_ERROR(library.Bind("cudaIpcOpenMemHandle", table.open_memory_handle));
  RETURN_IF_ERROR(library.Bind("cudaIpcCloseMemHandle", table.close_memory_handle));
  RETURN_IF_ERROR(library.Bind("cudaIpcGetEventHandle", table.get_event_handle));
  RETURN_IF_ERROR(library.Bind("cudaIpcOpenEventHandle", table.open_event_handle));
  RETURN_IF_ERROR(library.Bind("cudaMemGetInfo", table.memory_info));
  return table;
}

}  // namespace pelton::cuda

namespace pelton::gpu_ipc {

absl::StatusOr<std::unique_ptr<Device>> Device::Open() {
  std::unique_ptr<Device> device(new Device);
  ASSIGN_OR_RETURN(device->runtime_, cuda::CudaRuntime::Load());
  if (device->runtime_->device_count() == 0) {
    return absl::NotFoundError(device->runtime_->WhyNoDevice());
  }
  ASSIGN_OR_RETURN(device->ipc_, cuda::FindIpcCalls(*device->runtime_));
  ASSIGN_OR_RETURN(device->kernel_, FindMeanKernel());
  ASSIGN_OR_RETURN(device->library_, nccl::NcclLibrary::Load());
  return device;
}

std::string Device::Describe() const {
  return absl::StrCat(library_->Describe(), ", CUDA runtime ", runtime_->version(), " (",
                      runtime_->path(), ")");
}

absl::StatusOr<cuda::StreamHandle> Device::NewStream() {
  cuda::StreamHandle stream = nullptr;
  RETURN_IF_ERROR(ToStatus(calls().stream_create_with_flags(&stream, cuda::kStreamNonBlocking),
                           "cudaStreamCreateWithFlags"));
  return stream;
}

absl::StatusOr<cuda::EventHandle> Device::NewEvent(bool is_shared) {
  cuda::EventHandle event = nullptr;
  const unsigned flags = cuda::kEventDisableTiming | (is_shared ? cuda::kEventInterprocess : 0);
  RETURN_IF_ERROR(
      ToStatus(calls().event_create_with_flags(&event, flags), "cudaEventCreateWithFlags"));
  return event;
}

absl::StatusOr<float*> Device::NewFloats(uint64_t count, float value) {
  void* memory = nullptr;
  const std::vector<float> values(count, value);
  RETURN_IF_ERROR(ToStatus(calls().allocate(&memory, count * sizeof(float)), "cudaMalloc"));
  RETURN_IF_ERROR(ToStatus(calls().memcpy_async(memory, values.data(), count * sizeof(float),
                                                cuda::kMemcpyDefault, nullptr),
                           "cudaMemcpyAsync"));
  RETURN_IF_ERROR(ToStatus(calls().stream_synchronize(nullptr), "cudaStreamSynchronize"));
  return static_cast<float*>(memory);
}

absl::StatusOr<const double*> Device::NewFactors(const std::vector<double>& factors) {
  void* memory = nullptr;
  const size_t size_bytes = factors.size() * sizeof(double);
  RETURN_IF_ERROR(ToStatus(calls().allocate(&memory, size_bytes), "cudaMalloc"));
  RETURN_IF_ERROR(ToStatus(
      calls().memcpy_async(memory, factors.data(), size_bytes, cuda::kMemcpyDefault, nullptr),
      "cudaMemcpyAsync"));
  RETURN_IF_ERROR(ToStatus(calls().stream_synchronize(nullptr), "cudaStreamSynchronize"));
  return static_cast<const double*>(memory);
}

absl::StatusOr<uint64_t> Device::FreeBytes() const {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  RETURN_IF_ERROR(ToStatus(ipc_.memory_info(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  return free_bytes;
}

absl::Status Device::Connect(const std::string& id, int rank, int ranks, absl::Time deadline) {
  ASSIGN_OR_RETURN(const nccl::UniqueId unique_id, IdOf(id));
  communicator_ =
      std::make_unique<nccl::NativeCommunicator>(*library_, *runtime_, 0, "the buckets' NCCL");
  RETURN_IF_ERROR(communicator_->Begin(unique_id, rank, ranks));
  ASSIGN_OR_RETURN(half_, NewFactors({0.5}));
  while (Clock::Real().Now() < deadline) {
    ASSIGN_OR_RETURN(const bool is_idle, communicator_->Poll());
    if (is_idle) return absl::OkStatus();
    sched_yield();
  }
  return OutOfTime(absl::StrCat("NCCL of rank ", rank, " has met the other ranks"));
}

absl::Status Device::Combine(const float* own, const float* theirs, const double* factors,
                             float* target, uint64_t count, cuda::StreamHandle stream) {
  PeltonMean mean{};
  mean.own = own;
  mean.theirs = theirs;
  mean.stride_bytes = 0;  // there is one row at most
  mean.source_count = theirs == nullptr ? 0 : 1;
  mean.dtype = static_cast<int32_t>(DType::kFloat32);
  mean.factors = factors;
  mean.target = target;
  mean.count = count;
  return ToStatus(kernel_(&mean, stream), "pelton_weighted_mean");
}

absl::Status Device::Work(float* bucket, const Experiment& experiment, cuda::StreamHandle stream,
                          absl::Time deadline) {
  ASSIGN_OR_RETURN(
      bool is_on_stream, communicator_->Call("ncclAllReduce", [&](const nccl::NcclTable& nccl_calls,
                                                                  nccl::Handle comm) {
        return nccl_calls.all_reduce(bucket, bucket, experiment.count(), nccl::Type::kFloat32,
                                     nccl::Op::kSum, comm, stream);
      }));
  while (!is_on_stream) {
    if (Clock::Real().Now() >= deadline) {
      return OutOfTime("NCCL has put the allreduce on the stream");
    }
    ASSIGN_OR_RETURN(is_on_stream, communicator_->Poll());
    sched_yield();
  }
  for (int pass = 0; pass < experiment.passes; ++pass) {
    RETURN_IF_ERROR(Combine(bucket, nullptr, half_, bucket, experiment.count(), stream));
  }
  return absl::OkStatus();
}

absl::Status Device::Await(cuda::EventHandle event, absl::string_view what, absl::Time deadline,
                           absl::FunctionRef<absl::Status()> check) {
  constexpr unsigned kQueriesBetweenChecks = 64;
  for (unsigned query = 1; true; ++query) {
    const int result = calls().event_query(event);
    if (result != cuda::kErrorNotReady) return ToStatus(result, "cudaEventQuery");
    if (query % kQueriesBetweenChecks == 0) {
      RETURN_IF_ERROR(check());
      if (Clock::Real().Now() >= deadline) {
        return OutOfTime(absl::StrCat(what, " has ended on the device"));
      }
    }
    sched_yield();
  }
}

std::string IdToText(const nccl::UniqueId& id) {
  return absl::BytesToHexString({id.bytes, sizeof id.bytes});
}

absl::StatusOr<nccl::UniqueId> IdOf(const std::string& text) {
  const std::string bytes = absl::HexStringToBytes(text);
  nccl::UniqueId id{};
  if (bytes.size() != sizeof id.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no id of NCCL"));
  }
  std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
  return id;
}

}  // namespace pelton::gpu_ipc
