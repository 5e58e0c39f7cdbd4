#include "comm/transport/nccl/gpu_ipc/handles.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::gpu_ipc {
namespace {

constexpr absl::string_view kNeeded =
    "both processes have to be one user's, on one GPU, in one PID and one IPC namespace";

absl::Status Explain(const absl::Status& status) {
  if (status.ok()) return status;
  return {status.code(), absl::StrCat(status.message(), "; ", kNeeded)};
}

template <typename Handle>
void Append(const Handle& handle, std::string& bytes) {
  bytes.append(handle.bytes, sizeof handle.bytes);
}

template <typename Handle>
Handle Take(const std::string& bytes, size_t& offset) {
  Handle handle;
  std::memcpy(handle.bytes, bytes.data() + offset, sizeof handle.bytes);
  offset += sizeof handle.bytes;
  return handle;
}

}  // namespace

absl::StatusOr<SharedBuckets> MakeBuckets(Device& device, const Experiment& experiment) {
  SharedBuckets buckets;
  const auto bucket_count = static_cast<uint64_t>(experiment.buckets);
  ASSIGN_OR_RETURN(buckets.memory, device.NewFloats(bucket_count * experiment.count(), 0));
  for (uint64_t b = 0; b < bucket_count; ++b) {
    ASSIGN_OR_RETURN(buckets.ready.emplace_back(), device.NewEvent(/*is_shared=*/true));
    ASSIGN_OR_RETURN(buckets.done.emplace_back(), device.NewEvent(/*is_shared=*/true));
  }
  return buckets;
}

absl::StatusOr<std::string> Export(Device& device, const SharedBuckets& buckets) {
  std::string bytes;
  cuda::MemoryHandle memory;
  RETURN_IF_ERROR(Explain(device.ToStatus(device.ipc().get_memory_handle(&memory, buckets.memory),
                                          "cudaIpcGetMemHandle")));
  Append(memory, bytes);
  for (const auto* events : {&buckets.ready, &buckets.done}) {
    for (const cuda::EventHandle event : *events) {
      cuda::SharedEventHandle handle;
      RETURN_IF_ERROR(Explain(
          device.ToStatus(device.ipc().get_event_handle(&handle, event), "cudaIpcGetEventHandle")));
      Append(handle, bytes);
    }
  }
  return bytes;
}

absl::StatusOr<SharedBuckets> Import(Device& device, const Experiment& experiment,
                                     const std::string& bytes) {
  const auto bucket_count = static_cast<size_t>(experiment.buckets);
  const size_t wanted_bytes =
      sizeof(cuda::MemoryHandle) + 2 * bucket_count * sizeof(cuda::SharedEventHandle);
  if (bytes.size() != wanted_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("handles: ", bytes.size(), " bytes, where ",
                                                   bucket_count, " buckets have ", wanted_bytes));
  }
  SharedBuckets buckets;
  size_t offset = 0;
  void* memory = nullptr;
  const auto memory_handle = Take<cuda::MemoryHandle>(bytes, offset);
  RETURN_IF_ERROR(Explain(device.ToStatus(
      device.ipc().open_memory_handle(&memory, memory_handle, cuda::kIpcLazyPeerAccess),
      "cudaIpcOpenMemHandle")));
  buckets.memory = static_cast<float*>(memory);
  for (auto* events : {&buckets.ready, &buckets.done}) {
    for (size_t b = 0; b < bucket_count; ++b) {
      const auto handle = Take<cuda::SharedEventHandle>(bytes, offset);
      RETURN_IF_ERROR(
          Explain(device.ToStatus(device.ipc().open_event_handle(&events->emplace_back(), handle),
                                  "cudaIpcOpenEventHandle")));
    }
  }
  return buckets;
}

}  // namespace pelton::gpu_ipc
