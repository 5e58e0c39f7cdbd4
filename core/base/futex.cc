#include "core/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace pelton {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

int Operation(int operation, FutexScope scope) {
  return scope == FutexScope::kProcess ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout,
               FutexScope scope) {
  if (timeout <= absl::ZeroDuration()) return;
  timespec limit;
  timespec* limit_or_null = nullptr;
  if (timeout != absl::InfiniteDuration()) {
    limit = absl::ToTimespec(timeout);
    limit_or_null = &limit;
  }
  syscall(SYS_futex, word, Operation(FUTEX_WAIT, scope), expected, limit_or_null, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>* word, int count, FutexScope scope) {
  syscall(SYS_futex, word, Operation(FUTEX_WAKE, scope), count, nullptr, nullptr, 0);
}

}  // namespace pelton
