#include "tests/accelerator/streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <vector>

#include "core/base/sync.h"

namespace pelton::accelerator {
namespace {

constexpr size_t kPoolSize = 32;
constexpr size_t kMaxDevices = 64;
constexpr unsigned kNonBlocking = 1;

// The streams of one device. Stream i of it has the id i + 1; 0 is the default stream.
// Threads: any. Owns: the streams, which live as long as the process.
class Pool {
 public:
  c10::StreamId Next() {
    MutexLock lock(&mutex_);
    if (streams_.size() < kPoolSize) {
      StreamHandle stream = nullptr;
      Check(Runtime::Get().stream_create_with_flags(&stream, kNonBlocking),
            "cudaStreamCreateWithFlags");
      streams_.push_back(stream);
    }
    return static_cast<c10::StreamId>(next_++ % kPoolSize) + 1;
  }
  StreamHandle At(c10::StreamId id) {
    MutexLock lock(&mutex_);
    TORCH_CHECK(id > 0 && static_cast<size_t>(id) <= streams_.size(), "no stream ", id);
    return streams_[static_cast<size_t>(id - 1)];
  }

 private:
  Mutex mutex_;
  std::vector<StreamHandle> streams_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
};

size_t IndexOf(c10::Device device) {
  TORCH_CHECK(device.is_privateuseone(), device, " is not a device of the stand-in");
  const auto index = static_cast<size_t>(Resolve(device).index());
  TORCH_CHECK(index < kMaxDevices, "no device ", index);
  return index;
}

Pool& PoolOf(c10::Device device) {
  static auto* const pools = new std::array<Pool, kMaxDevices>;
  return (*pools)[IndexOf(device)];
}

thread_local std::array<c10::StreamId, kMaxDevices> current_streams = {};

c10::Stream Make(c10::Device device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, Resolve(device), id);
}

}  // namespace

int CurrentDevice() {
  int device = 0;
  Check(Runtime::Get().get_device(&device), "cudaGetDevice");
  return device;
}

c10::DeviceIndex DeviceCount() noexcept {
  int count = 0;
  return Runtime::Get().get_device_count(&count) == 0 ? static_cast<c10::DeviceIndex>(count) : 0;
}

c10::Device Resolve(c10::Device device) {
  if (device.has_index()) return device;
  return {device.type(), static_cast<c10::DeviceIndex>(CurrentDevice())};
}

c10::Stream DefaultStream(c10::Device device) { return Make(device, 0); }

c10::Stream CurrentStream(c10::Device device) {
  return Make(device, current_streams[IndexOf(device)]);
}

c10::Stream ExchangeStream(c10::Stream stream) {
  const c10::Stream before = CurrentStream(stream.device());
  current_streams[IndexOf(stream.device())] = stream.id();
  return before;
}

c10::Stream PoolStream(c10::Device device) { return Make(device, PoolOf(device).Next()); }

StreamHandle HandleOf(c10::Stream stream) {
  return stream.id() == 0 ? nullptr : PoolOf(stream.device()).At(stream.id());
}

void SynchronizeCurrent(c10::Device device) {
  Check(Runtime::Get().stream_synchronize(HandleOf(CurrentStream(device))),
        "cudaStreamSynchronize");
}

}  // namespace pelton::accelerator
