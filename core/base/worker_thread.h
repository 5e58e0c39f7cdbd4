// A thread for calls that block.
#ifndef PELTON_CORE_BASE_WORKER_THREAD_H_
#define PELTON_CORE_BASE_WORKER_THREAD_H_

#include <cstddef>
#include <deque>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/base/sync.h"

namespace pelton {

// Makes calls one after the other, in the order in which they were added, where the thread that
// adds one must not wait for it: calls of a foreign library, or calls that take a lock of Python's.
// What has state of its own is an actor instead (docs/actors.md). The thread starts with the first
// call.
// Threads: any; not from a call, but for Add. Owns: the thread, and the calls until they are made.
class WorkerThread {
 public:
  using Call = absl::AnyInvocable<void()>;

  // `name` is the thread's, whose first 15 letters count. `most_waiting`: calls that are there at
  // once.
  explicit WorkerThread(std::string name, size_t most_waiting = SIZE_MAX);
  // Blocks: until all calls are made; they have deadlines of their own.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // False, and no effect: most_waiting are there. Blocks: never.
  bool Add(Call call);
  // False: a call is still there at `deadline`. Blocks: until then.
  bool AwaitIdle(absl::Time deadline);

 private:
  void Run();

  const std::string name_;
  const size_t most_waiting_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Call> calls_ ABSL_GUARDED_BY(mutex_);  // the first one is being made
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_WORKER_THREAD_H_
