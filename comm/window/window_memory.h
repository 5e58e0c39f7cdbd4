// The memory of one rank's end of a window, which its neighbours map, with the mutexes of its
// edges.
#ifndef PELTON_COMM_WINDOW_WINDOW_MEMORY_H_
#define PELTON_COMM_WINDOW_WINDOW_MEMORY_H_

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/mapping.h"
#include "comm/window/inlet.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// Only the edge's writer and its owner take it. The kernel gives it back when the thread that holds
// it dies, however it dies, and the thread that waits gets it at once. Threads: any; the thread
// that took it gives it back. Owns: nothing outside itself; it lies in shared memory and is made
// there once.
class EdgeMutex {
 public:
  EdgeMutex();
  EdgeMutex(const EdgeMutex&) = delete;
  EdgeMutex& operator=(const EdgeMutex&) = delete;

  // Whether `taker`, which reports name, has it now. Blocks: never.
  bool TryLock(Rank taker);
  // Blocks: until it is free, or `deadline`. Errors: DeadlineExceeded: names the holder;
  // FailedPrecondition: this thread holds it already; InterruptedError.
  absl::Status Lock(Rank taker, const MovingDeadline& deadline);
  // Errors: FailedPrecondition: this thread does not hold it.
  absl::Status Unlock();
  // The error of a wait for it that has taken too long.
  absl::Status NotInTime() const;

 private:
  // Takes over what a dead holder left.
  bool HasIt(int error, Rank taker);

  pthread_mutex_t mutex_;
  std::atomic<int32_t> holder_ = -1;
};

// What decides where everything lies: a mutex for each rank of the world, an inlet for each source,
// four buffers an inlet, and room for the tensor itself. Threads: a value. Owns: nothing.
struct WindowLayout {
  int32_t world_size = 1;
  uint64_t source_count = 0;
  uint64_t value_bytes = 0;

  uint64_t stride_bytes() const;  // from one buffer to the next
  uint64_t inlets_offset() const;
  uint64_t buffers_offset() const;
  uint64_t home_offset() const;
  uint64_t size_bytes() const;
};

// One edge, as either end sees it. Threads: a value. Owns: nothing.
struct EdgeView {
  Inlet* inlet = nullptr;
  std::atomic<uint32_t>* provided = nullptr;  // a bit for each buffer whose memory is there
  std::byte* buffers = nullptr;
  uint64_t stride_bytes = 0;
  uint64_t value_bytes = 0;

  std::byte* buffer(int number) const {
    return buffers + stride_bytes * static_cast<uint64_t>(number);
  }
  // Has the kernel provide the memory of a buffer, once, so that want of it is an error here and no
  // signal while the buffer is filled. Errors: ResourceExhausted.
  absl::Status Provide(int number) const;
};

// Where a rank's memory is to be found by other processes of its host. Threads: a value.
struct MemoryAddress {
  int64_t pid = 0;
  int64_t descriptor = -1;
  uint64_t device = 0;
  uint64_t inode = 0;
};

// Pages take memory when they are first touched: a buffer that is never needed costs an address.
// Threads: any; see the parts. Owns: its hold on the mapping, and the descriptor until Close.
class WindowMemory {
 public:
  // Errors: ResourceExhausted.
  static absl::StatusOr<WindowMemory> Create(const WindowLayout& layout, const std::string& name);
  // That of another rank, which has not closed its descriptor yet. Errors: PermissionDenied: the
  // kernel does not let this process open it; NotFound: it is not there, as in a container of its
  // own; InvalidArgument: it is other memory.
  static absl::StatusOr<WindowMemory> Attach(const WindowLayout& layout,
                                             const MemoryAddress& address);

  MemoryAddress address() const;
  // Once all neighbours have attached: a window keeps no descriptor.
  void Close() { descriptor_ = Descriptor(); }

  EdgeMutex& mutex(Rank source) const;
  EdgeView edge(uint64_t source_index) const;
  // Keeps the mapping. Shared: see Window::home_owner.
  std::shared_ptr<const void> owner() const { return mapping_; }
  // Room for the window's tensor.
  std::byte* home() const { return mapping_->data() + layout_.home_offset(); }

 private:
  WindowMemory(const WindowLayout& layout, Descriptor descriptor, shm::Mapping::Pointer mapping)
      : layout_(layout), descriptor_(std::move(descriptor)), mapping_(std::move(mapping)) {}

  WindowLayout layout_;
  Descriptor descriptor_;
  shm::Mapping::Pointer mapping_;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_WINDOW_MEMORY_H_
