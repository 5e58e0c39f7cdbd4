// A GPU's memory and streams for the rounds of a model.
#ifndef PELTON_CORE_MEMORY_CUDA_CUDA_QUEUE_H_
#define PELTON_CORE_MEMORY_CUDA_CUDA_QUEUE_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/sharing.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/device_queue.h"

namespace pelton {

// Threads: as DeviceQueue; marks of several buckets may come at once. Owns: as DeviceQueue; the
// runtime outlives it.
class CudaQueue final : public DeviceQueue {
 public:
  // Where the calling thread puts its work; null is the device's default stream.
  using CallersStream = std::function<cuda::StreamHandle()>;

  // Errors: those of the runtime: no such device, no memory.
  static absl::StatusOr<std::unique_ptr<CudaQueue>> Create(const cuda::CudaRuntime& runtime,
                                                           int device, CallersStream callers);
  ~CudaQueue() override;

  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override;
  void Release(std::byte* memory) override;
  Stream& stream() override { return *stream_; }
  absl::Status Enqueue(absl::FunctionRef<absl::Status(Stream&)> work) override;
  absl::Status Zero(std::byte* data, size_t size_bytes) override;
  absl::Status MarkReady(BucketId bucket) override;
  absl::Status JoinPipelines() override;
  absl::Status AwaitReady(BucketId bucket) override;
  absl::Status Fill(std::byte* data, uint8_t value, size_t size_bytes) override;
  absl::Status Write(std::byte* device, const void* host, size_t size_bytes,
                     absl::Time deadline) override;
  absl::Status Read(void* host, const std::byte* device, size_t size_bytes,
                    absl::Time deadline) override;

 private:
  CudaQueue(const cuda::CudaRuntime& runtime, int device, CallersStream callers)
      : runtime_(runtime), device_(device), callers_(std::move(callers)) {}

  absl::Status Open();
  absl::Status ToStatus(int result, absl::string_view call) const;
  absl::StatusOr<cuda::EventHandle> MakeEvent();
  absl::StatusOr<cuda::EventHandle> EventOf(BucketId bucket);
  absl::Status Copy(void* to, const void* from, size_t size_bytes, absl::Time deadline);
  // Blocks: until the pipelines' stream has come to its end, or `deadline`.
  absl::Status AwaitPipelines(absl::Time deadline);

  const cuda::CudaRuntime& runtime_;
  const int device_;
  const CallersStream callers_;
  std::optional<CudaStream> stream_;
  cuda::EventHandle joined_ = nullptr;             // the pipelines' place when the caller joins
  cuda::EventHandle reached_ = nullptr;            // the one that the host waits for
  SharedTable<int32_t, cuda::EventHandle> ready_;  // by bucket
  SharedList<std::byte*> memory_;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_CUDA_CUDA_QUEUE_H_
