#include "comm/window/window_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// The kernel's wait goes by the wall clock, so no wait is long.
constexpr absl::Duration kLook = kInterruptInterval;

timespec WallTime(absl::Time time) { return absl::ToTimespec(ToWallTime(time)); }

constexpr uint64_t kLine = 64;
constexpr uint64_t kPage = limits::kRegionAlignmentBytes;

static_assert(sizeof(EdgeMutex) <= kLine);
// At the end of an inlet's line.
constexpr uint64_t kProvidedOffset = kLine - sizeof(std::atomic<uint32_t>);
static_assert(sizeof(Inlet) <= kProvidedOffset);

}  // namespace

EdgeMutex::EdgeMutex() {
  pthread_mutexattr_t attributes;
  PELTON_CHECK(pthread_mutexattr_init(&attributes) == 0);
  PELTON_CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  PELTON_CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  PELTON_CHECK(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK) == 0);
  PELTON_CHECK(pthread_mutex_init(&mutex_, &attributes) == 0);
  PELTON_CHECK(pthread_mutexattr_destroy(&attributes) == 0);
}

bool EdgeMutex::HasIt(int error, Rank taker) {
  // An inlet is whole at any time, so there is nothing to repair after the dead.
  if (error == EOWNERDEAD) PELTON_CHECK(pthread_mutex_consistent(&mutex_) == 0);
  if (error != 0 && error != EOWNERDEAD) return false;
  holder_.store(taker.value(), std::memory_order_relaxed);
  return true;
}

bool EdgeMutex::TryLock(Rank taker) { return HasIt(pthread_mutex_trylock(&mutex_), taker); }

absl::Status EdgeMutex::Lock(Rank taker, const MovingDeadline& deadline) {
  while (true) {
    const absl::Time now = Clock::Real().Now();
    const timespec until = WallTime(std::min(deadline.At(now), now + kLook));
    const int error = pthread_mutex_timedlock(&mutex_, &until);
    if (HasIt(error, taker)) return absl::OkStatus();
    if (error == EDEADLK) {
      return absl::FailedPreconditionError(
          "this thread holds the window's mutex already; call without require_mutex inside "
          "win_mutex");
    }
    if (error != ETIMEDOUT && error != EINTR && error != EAGAIN) {
      return absl::InternalError(absl::StrCat("the window's mutex: ", ErrorText(error)));
    }
    RETURN_IF_ERROR(CheckInterrupt());
    if (now >= deadline.At(now)) return NotInTime();
  }
}

absl::Status EdgeMutex::NotInTime() const {
  return absl::DeadlineExceededError(absl::StrCat("rank ", holder_.load(),
                                                  " holds the window's mutex of this edge and has "
                                                  "not given it back in time"));
}

absl::Status EdgeMutex::Unlock() {
  if (pthread_mutex_unlock(&mutex_) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("this thread does not hold the window's mutex");
}

// Buffers of a page and more begin on a page: one that is not used takes no memory.
uint64_t WindowLayout::stride_bytes() const {
  return RoundUp(value_bytes, value_bytes < kPage ? kLine : kPage);
}
uint64_t WindowLayout::inlets_offset() const { return kLine * static_cast<uint64_t>(world_size); }
uint64_t WindowLayout::buffers_offset() const {
  return RoundUp(inlets_offset() + kLine * source_count, value_bytes < kPage ? kLine : kPage);
}
uint64_t WindowLayout::home_offset() const {
  return RoundUp(buffers_offset() + stride_bytes() * Inlet::kBuffers * source_count, kPage);
}
uint64_t WindowLayout::size_bytes() const { return home_offset() + RoundUp(value_bytes, kPage); }

absl::Status EdgeView::Provide(int number) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, of Linux 5.14
  const uint32_t bit = uint32_t{1} << number;
  if (value_bytes < kPage || (provided->load(std::memory_order_relaxed) & bit) != 0) {
    return absl::OkStatus();
  }
  if (madvise(buffer(number), stride_bytes, kPopulateWrite) == 0 || errno == EINVAL) {
    provided->fetch_or(bit, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("memory for a window's buffer of ", value_bytes, " bytes: ", ErrorText(errno)));
}

absl::StatusOr<WindowMemory> WindowMemory::Create(const WindowLayout& layout,
                                                  const std::string& name) {
  ASSIGN_OR_RETURN(Descriptor descriptor,
                   shm::NewSharedMemory(layout.size_bytes(),
                                        absl::StrCat("pelton-window-", name).substr(0, 200)));
  // What is written here, and small values: want of memory would else be a signal later.
  const uint64_t now = layout.value_bytes < kPage ? layout.size_bytes() : layout.buffers_offset();
  if (fallocate(descriptor.get(), 0, 0, static_cast<off_t>(now)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory for window '", name, "': ", ErrorText(errno)));
  }
  ASSIGN_OR_RETURN(shm::Mapping::Pointer mapping, shm::Mapping::Of(descriptor.get()));
  for (int32_t rank = 0; rank < layout.world_size; ++rank) {
    new (mapping->data() + kLine * static_cast<uint64_t>(rank)) EdgeMutex();
  }
  for (uint64_t source = 0; source < layout.source_count; ++source) {
    std::byte* const line = mapping->data() + layout.inlets_offset() + kLine * source;
    new (line) Inlet(/*is_zero=*/true);
    new (line + kProvidedOffset) std::atomic<uint32_t>(0);
  }
  return WindowMemory(layout, std::move(descriptor), std::move(mapping));
}

absl::StatusOr<WindowMemory> WindowMemory::Attach(const WindowLayout& layout,
                                                  const MemoryAddress& address) {
  const std::string path = absl::StrCat("/proc/", address.pid, "/fd/", address.descriptor);
  Descriptor opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.is_open()) {
    const std::string text = absl::StrCat("opening ", path, ": ", ErrorText(errno));
    if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(text);
    if (errno == EMFILE || errno == ENFILE) return absl::ResourceExhaustedError(text);
    return absl::NotFoundError(text);
  }
  struct stat file;
  if (fstat(opened.get(), &file) != 0 || file.st_dev != address.device ||
      file.st_ino != address.inode || static_cast<uint64_t>(file.st_size) != layout.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not the window's memory"));
  }
  ASSIGN_OR_RETURN(shm::Mapping::Pointer mapping, shm::Mapping::Of(opened.get()));
  return WindowMemory(layout, Descriptor(), std::move(mapping));
}

MemoryAddress WindowMemory::address() const {
  struct stat file = {};
  (void)fstat(descriptor_.get(), &file);  // of an open descriptor it does not fail
  return {getpid(), descriptor_.get(), file.st_dev, file.st_ino};
}

EdgeMutex& WindowMemory::mutex(Rank source) const {
  return *reinterpret_cast<EdgeMutex*>(mapping_->data() +
                                       kLine * static_cast<uint64_t>(source.value()));
}

EdgeView WindowMemory::edge(uint64_t source_index) const {
  std::byte* const data = mapping_->data();
  EdgeView view;
  std::byte* const line = data + layout_.inlets_offset() + kLine * source_index;
  view.inlet = reinterpret_cast<Inlet*>(line);
  view.provided = reinterpret_cast<std::atomic<uint32_t>*>(line + kProvidedOffset);
  view.stride_bytes = layout_.stride_bytes();
  view.value_bytes = layout_.value_bytes;
  view.buffers =
      data + layout_.buffers_offset() + view.stride_bytes * Inlet::kBuffers * source_index;
  return view;
}

}  // namespace pelton
