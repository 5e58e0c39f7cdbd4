#include "core/memory/cuda/cuda_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// How often the host looks.
constexpr absl::Duration kPollInterval = absl::Microseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<CudaQueue>> CudaQueue::Create(const cuda::CudaRuntime& runtime,
                                                             int device, CallersStream callers) {
  std::unique_ptr<CudaQueue> queue(new CudaQueue(runtime, device, std::move(callers)));
  RETURN_IF_ERROR(queue->Open());
  return queue;
}

absl::Status CudaQueue::Open() {
  const cuda::DeviceScope scope(runtime_, device_);
  cuda::StreamHandle handle = nullptr;
  RETURN_IF_ERROR(
      ToStatus(runtime_.calls().stream_create_with_flags(&handle, cuda::kStreamNonBlocking),
               "cudaStreamCreateWithFlags"));
  stream_.emplace(handle, device_);
  ASSIGN_OR_RETURN(joined_, MakeEvent());
  ASSIGN_OR_RETURN(reached_, MakeEvent());
  return absl::OkStatus();
}

CudaQueue::~CudaQueue() {
  const cuda::DeviceScope scope(runtime_, device_);
  std::vector<cuda::EventHandle> events = ready_.All();
  events.insert(events.end(), {joined_, reached_});
  for (cuda::EventHandle event : events) {
    if (event != nullptr) runtime_.calls().event_destroy(event);
  }
  if (stream_.has_value()) runtime_.calls().stream_destroy(stream_->handle());
  memory_.ForEach([this](std::byte* memory) { runtime_.calls().release(memory); });
}

absl::Status CudaQueue::ToStatus(int result, absl::string_view call) const {
  return Annotate(runtime_.ToStatus(result, call),
                  [this] { return absl::StrCat("device ", device_); });
}

absl::StatusOr<cuda::EventHandle> CudaQueue::MakeEvent() {
  cuda::EventHandle event = nullptr;
  RETURN_IF_ERROR(
      ToStatus(runtime_.calls().event_create_with_flags(&event, cuda::kEventDisableTiming),
               "cudaEventCreateWithFlags"));
  return event;
}

absl::Status CudaQueue::Enqueue(absl::FunctionRef<absl::Status(Stream&)> work) {
  const cuda::DeviceScope scope(runtime_, device_);
  return Annotate(work(*stream_), [this] { return absl::StrCat("device ", device_); });
}

absl::StatusOr<std::byte*> CudaQueue::Allocate(size_t size_bytes) {
  const cuda::DeviceScope scope(runtime_, device_);
  void* memory = nullptr;
  RETURN_IF_ERROR(ToStatus(runtime_.calls().allocate(&memory, size_bytes), "cudaMalloc"));
  auto* const bytes = static_cast<std::byte*>(memory);
  memory_.Add(bytes);
  // Waits, so that the next user finds zeros on any stream; memory is made too rarely for the wait
  // to matter.
  absl::Status status = Fill(bytes, 0, size_bytes);
  if (status.ok()) {
    status =
        ToStatus(runtime_.calls().stream_synchronize(stream_->handle()), "cudaStreamSynchronize");
  }
  if (status.ok()) return bytes;
  Release(bytes);
  return status;
}

void CudaQueue::Release(std::byte* memory) {
  const cuda::DeviceScope scope(runtime_, device_);
  memory_.Remove(memory);
  // Kernels behind the last operation may still use it. cudaFree itself would wait for the device.
  runtime_.calls().stream_synchronize(stream_->handle());
  runtime_.calls().release(memory);
}

absl::Status CudaQueue::Zero(std::byte* data, size_t size_bytes) {
  const cuda::DeviceScope scope(runtime_, device_);
  return ToStatus(runtime_.calls().memset_async(data, 0, size_bytes, callers_()),
                  "cudaMemsetAsync");
}

absl::StatusOr<cuda::EventHandle> CudaQueue::EventOf(BucketId bucket) {
  return ready_.FindOrMake(bucket.value(), [this] { return MakeEvent(); });
}

absl::Status CudaQueue::MarkReady(BucketId bucket) {
  const cuda::DeviceScope scope(runtime_, device_);
  ASSIGN_OR_RETURN(const cuda::EventHandle event, EventOf(bucket));
  return ToStatus(runtime_.calls().event_record(event, callers_()), "cudaEventRecord");
}

absl::Status CudaQueue::AwaitReady(BucketId bucket) {
  const cuda::DeviceScope scope(runtime_, device_);
  ASSIGN_OR_RETURN(const cuda::EventHandle event, EventOf(bucket));
  return ToStatus(runtime_.calls().stream_wait_event(stream_->handle(), event, 0),
                  "cudaStreamWaitEvent");
}

absl::Status CudaQueue::JoinPipelines() {
  const cuda::DeviceScope scope(runtime_, device_);
  RETURN_IF_ERROR(
      ToStatus(runtime_.calls().event_record(joined_, stream_->handle()), "cudaEventRecord"));
  return ToStatus(runtime_.calls().stream_wait_event(callers_(), joined_, 0),
                  "cudaStreamWaitEvent");
}

absl::Status CudaQueue::Fill(std::byte* data, uint8_t value, size_t size_bytes) {
  const cuda::DeviceScope scope(runtime_, device_);
  return ToStatus(runtime_.calls().memset_async(data, value, size_bytes, stream_->handle()),
                  "cudaMemsetAsync");
}

absl::Status CudaQueue::AwaitPipelines(absl::Time deadline) {
  RETURN_IF_ERROR(
      ToStatus(runtime_.calls().event_record(reached_, stream_->handle()), "cudaEventRecord"));
  while (true) {
    const int result = runtime_.calls().event_query(reached_);
    if (result != cuda::kErrorNotReady) return ToStatus(result, "cudaEventQuery");
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("device ", device_, ": what pipelines have put on it is not done in time"));
    }
    RETURN_IF_ERROR(CheckInterrupt());
    // ALLOW: the runtime cannot wait with a deadline
    absl::SleepFor(kPollInterval);
  }
}

// A copy of the host's pageable memory may wait for the stream: it begins when there is nothing to
// wait for.
absl::Status CudaQueue::Copy(void* to, const void* from, size_t size_bytes, absl::Time deadline) {
  const cuda::DeviceScope scope(runtime_, device_);
  RETURN_IF_ERROR(AwaitPipelines(deadline));
  RETURN_IF_ERROR(ToStatus(
      runtime_.calls().memcpy_async(to, from, size_bytes, cuda::kMemcpyDefault, stream_->handle()),
      "cudaMemcpyAsync"));
  return AwaitPipelines(deadline);
}

absl::Status CudaQueue::Write(std::byte* device, const void* host, size_t size_bytes,
                              absl::Time deadline) {
  return Copy(device, host, size_bytes, deadline);
}

absl::Status CudaQueue::Read(void* host, const std::byte* device, size_t size_bytes,
                             absl::Time deadline) {
  return Copy(host, device, size_bytes, deadline);
}

}  // namespace pelton
