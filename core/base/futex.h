// The kernel's wait on a 32-bit word; everything in the runtime that parks a thread goes through
// it.
#ifndef PELTON_CORE_BASE_FUTEX_H_
#define PELTON_CORE_BASE_FUTEX_H_

#include <atomic>
#include <climits>
#include <cstdint>

#include "absl/time/time.h"

namespace pelton {

// Whether only this process waits on a word, or others that map the same memory do too.
enum class FutexScope { kProcess, kShared };

// Sleeps while `*word == expected`, until woken. May wake for no reason.
// Blocks: at most `timeout`.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected, absl::Duration timeout,
               FutexScope scope = FutexScope::kProcess);

// A count that wakes every thread.
inline constexpr int kAllSleepers = INT_MAX;

// Wakes at most `count` of the threads that sleep on `word`.
// Blocks: never.
void FutexWake(const std::atomic<uint32_t>* word, int count,
               FutexScope scope = FutexScope::kProcess);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_FUTEX_H_
