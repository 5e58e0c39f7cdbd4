#include "tests/accelerator/memory.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "core/base/sync.h"
#include "tests/accelerator/runtime.h"
#include "tests/accelerator/streams.h"

namespace pelton::accelerator {
namespace {

constexpr int kNoNumber = 0xFF;  // in all bytes: a NaN of any floating type
constexpr unsigned kDisableTiming = 2;

// Threads: any. Owns: the memory, until Release.
class Block {
 public:
  Block(void* memory, size_t size_bytes, StreamHandle stream)
      : memory_(memory), size_bytes_(size_bytes), stream_(stream) {}

  void* memory() const { return memory_; }
  void Record(StreamHandle stream) {
    if (stream == stream_) return;
    MutexLock lock(&mutex_);
    others_.insert(stream);
  }
  // Deletes the block when all streams that use it are done with it.
  static void Release(std::unique_ptr<Block> block) {
    const Runtime& runtime = Runtime::Get();
    for (StreamHandle other : block->TakeOthers()) {
      EventHandle event = nullptr;
      Check(runtime.event_create_with_flags(&event, kDisableTiming), "cudaEventCreateWithFlags");
      Check(runtime.event_record(event, other), "cudaEventRecord");
      Check(runtime.stream_wait_event(block->stream_, event, 0), "cudaStreamWaitEvent");
      Check(runtime.event_destroy(event), "cudaEventDestroy");
    }
    const StreamHandle stream = block->stream_;
    runtime.Push(stream, [&runtime, released = std::shared_ptr<Block>(std::move(block))] {
      std::memset(released->memory_, kNoNumber, released->size_bytes_);
      runtime.release(released->memory_);
    });
  }

 private:
  std::set<StreamHandle> TakeOthers() {
    MutexLock lock(&mutex_);
    return std::exchange(others_, {});
  }

  void* const memory_;
  const size_t size_bytes_;
  const StreamHandle stream_;
  Mutex mutex_;
  std::set<StreamHandle> others_ ABSL_GUARDED_BY(mutex_);
};

void ReleaseBlock(void* block) {
  Block::Release(std::unique_ptr<Block>(static_cast<Block*>(block)));
}

// Threads: any. Owns: nothing.
class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    const c10::Device device = Resolve(c10::Device(c10::DeviceType::PrivateUse1));
    if (size_bytes == 0) return {nullptr, device};
    void* memory = nullptr;
    Check(Runtime::Get().allocate(&memory, size_bytes), "cudaMalloc");
    std::memset(memory, kNoNumber, size_bytes);
    auto* const block = new Block(memory, size_bytes, HandleOf(CurrentStream(device)));
    return {memory, block, &ReleaseBlock, device};
  }
  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    SynchronizeCurrent(c10::Device(c10::DeviceType::PrivateUse1));
    std::memcpy(target, source, size_bytes);
  }
};

}  // namespace

c10::Allocator& Memory() {
  static DeviceMemory* const memory = new DeviceMemory;  // outlives every tensor
  return *memory;
}

void RecordStream(const c10::DataPtr& memory, c10::Stream stream) {
  if (memory.get_deleter() != &ReleaseBlock || memory.get_context() == nullptr) return;
  static_cast<Block*>(memory.get_context())->Record(HandleOf(stream));
}

}  // namespace pelton::accelerator
