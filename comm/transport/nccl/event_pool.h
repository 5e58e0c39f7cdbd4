// Events for marking places in a stream, used again and again.
#ifndef PELTON_COMM_TRANSPORT_NCCL_EVENT_POOL_H_
#define PELTON_COMM_TRANSPORT_NCCL_EVENT_POOL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"

namespace pelton::nccl {

// Threads: one at a time. Owns: its events; the runtime outlives it.
class EventPool {
 public:
  EventPool(const cuda::CudaRuntime& runtime, int device) : runtime_(runtime), device_(device) {}
  ~EventPool() {
    for (cuda::EventHandle event : idle_) runtime_.calls().event_destroy(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // An event that stands at the end of what is on `stream` now.
  absl::StatusOr<cuda::EventHandle> Record(cuda::StreamHandle stream) {
    cuda::EventHandle event = nullptr;
    if (idle_.empty()) {
      const cuda::DeviceScope scope(runtime_, device_);
      RETURN_IF_ERROR(runtime_.ToStatus(
          runtime_.calls().event_create_with_flags(&event, cuda::kEventDisableTiming),
          "cudaEventCreateWithFlags"));
    } else {
      event = idle_.back();
      idle_.pop_back();
    }
    const int result = runtime_.calls().event_record(event, stream);
    if (result != cuda::kSuccess) Return(event);
    RETURN_IF_ERROR(runtime_.ToStatus(result, "cudaEventRecord"));
    return event;
  }

  // Whether all before the event is done. Errors: the device's.
  absl::StatusOr<bool> IsPast(cuda::EventHandle event) const {
    const int result = runtime_.calls().event_query(event);
    if (result == cuda::kErrorNotReady) return false;
    RETURN_IF_ERROR(runtime_.ToStatus(result, "cudaEventQuery"));
    return true;
  }

  // Streams that wait for it keep waiting for the place it stood at. Null is nothing.
  void Return(cuda::EventHandle event) {
    if (event != nullptr) idle_.push_back(event);
  }

 private:
  const cuda::CudaRuntime& runtime_;
  const int device_;
  std::vector<cuda::EventHandle> idle_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_EVENT_POOL_H_
