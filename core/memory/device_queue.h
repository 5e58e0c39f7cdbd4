// What the rounds of a model need of a device on which its buckets lie.
#ifndef PELTON_CORE_MEMORY_DEVICE_QUEUE_H_
#define PELTON_CORE_MEMORY_DEVICE_QUEUE_H_

#include <compare>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

// Where memory lies.
enum class DeviceKind : uint8_t { kHost = 0, kCuda = 1 };
inline absl::string_view NameOf(DeviceKind kind) {
  return kind == DeviceKind::kHost ? "host" : "cuda";
}

// Where a tensor's memory lies: a kind of device and its number in this process.
struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int32_t index = 0;

  friend auto operator<=>(const Device&, const Device&) = default;
};

// A queue of work on a device. On the host work is done when the call that did it returns, so the
// host's stream is empty; a GPU's stream wraps the one of its runtime. Threads: one at a time.
// Owns: what its subclass says.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind device() const = 0;
};

// Threads: any. Owns: nothing.
class HostStream final : public Stream {
 public:
  DeviceKind device() const override { return DeviceKind::kHost; }
};

// A device's memory, and the order between two streams of it: the caller's, which computes, and the
// pipelines' own. The host waits for neither except where a method says so. So the device's errors
// come late, and any method may report one of earlier work.
// Threads: methods of the caller's stream by one thread at a time, those of the pipelines' by one
// at a time, the rest by any. Owns: the pipelines' stream, its events and the memory it gave out.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  // Memory of the device, all zeros, until Release or the queue's end. Blocks: as the device's
  // allocation. Errors: ResourceExhausted: there is not so much.
  virtual absl::StatusOr<std::byte*> Allocate(size_t size_bytes) = 0;
  // Work on the memory must have ended, except for work on the pipelines' stream. Blocks: until the
  // pipelines' stream has done that work, and for as long as the device's own release takes.
  virtual void Release(std::byte* memory) = 0;

  // The stream of the pipelines: what they launch, and Fill.
  virtual Stream& stream() = 0;
  // Calls `work` with that stream, the device being the calling thread's current one meanwhile:
  // what launches kernels needs both. Errors: its.
  virtual absl::Status Enqueue(absl::FunctionRef<absl::Status(Stream&)> work) = 0;

  // On the caller's stream: zeros.
  virtual absl::Status Zero(std::byte* data, size_t size_bytes) = 0;
  // Marks the caller's place in its stream: the bucket's elements are final there.
  virtual absl::Status MarkReady(BucketId bucket) = 0;
  // What the caller puts on its stream later comes after all that is on the pipelines' now.
  virtual absl::Status JoinPipelines() = 0;

  // What pipelines put on their stream later comes after the bucket's last mark.
  virtual absl::Status AwaitReady(BucketId bucket) = 0;
  // On the pipelines' stream: bytes of one value.
  virtual absl::Status Fill(std::byte* data, uint8_t value, size_t size_bytes) = 0;

  // Copies between the host's memory and the device's, after all that is on the pipelines' stream.
  // Blocks: until the copy is done, or `deadline`. Errors: DeadlineExceeded: then the host's memory
  // must stay alive until the stream has gone on.
  virtual absl::Status Write(std::byte* device, const void* host, size_t size_bytes,
                             absl::Time deadline) = 0;
  virtual absl::Status Read(void* host, const std::byte* device, size_t size_bytes,
                            absl::Time deadline) = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_DEVICE_QUEUE_H_
