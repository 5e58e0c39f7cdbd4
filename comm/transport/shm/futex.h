// Sleeping on a word of shared memory.
#ifndef PELTON_COMM_TRANSPORT_SHM_FUTEX_H_
#define PELTON_COMM_TRANSPORT_SHM_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace pelton::shm {

// Sleeps while `word` is `expected`, until a wake. Blocks: for at most `timeout`.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, absl::Duration timeout);
// Wakes every sleeper of `word`, in all processes that map it.
void FutexWake(std::atomic<uint32_t>& word);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_FUTEX_H_
