// The mutex of one edge of a window, in memory that processes share.
#ifndef PELTON_COMM_WINDOW_EDGE_MUTEX_H_
#define PELTON_COMM_WINDOW_EDGE_MUTEX_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
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

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_EDGE_MUTEX_H_
