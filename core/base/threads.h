// Threads for what no actor may do: waits for descriptors, and calls that block.
#ifndef PELTON_CORE_BASE_THREADS_H_
#define PELTON_CORE_BASE_THREADS_H_

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/base/sync.h"

namespace pelton {

// Waits in poll(2) until a descriptor has news, Wake is called, or a deadline, and calls back: what
// the callbacks touch and nobody else does needs no lock. A socket that is closed at its other end
// has news until it is no longer waited for. The callbacks may block, and hold up the thread's
// other work meanwhile.
//
// Threads: Wake by any; Start and Stop by one, which no callback is. In a forked child, which has
// no such thread, Wake and Stop do nothing. Owns: the thread and the callbacks, but not the
// descriptors that are waited for.
class PollThread {
 public:
  // Enters what to wait for next, and says until when at most. Nothing: the thread is to end.
  using Prepare = absl::AnyInvocable<std::optional<absl::Time>(std::vector<pollfd>& entries)>;
  // Told after each wait, whatever has ended it, what has come: the same entries with `revents`.
  using React = absl::AnyInvocable<void(const std::vector<pollfd>& entries)>;

  // `name` is the thread's, whose first 15 letters count.
  explicit PollThread(std::string name);
  // Blocks: as Stop.
  ~PollThread();
  PollThread(const PollThread&) = delete;
  PollThread& operator=(const PollThread&) = delete;

  // Once, in the process that has made this object. The thread calls `prepare` and `react` in turns
  // from now on.
  void Start(Prepare prepare, React react);
  // Has `prepare` called once more, which sees what the caller has written before. Blocks: never.
  void Wake();
  // No callback is called afterwards. Blocks: while one runs.
  void Stop();

 private:
  void Run();
  // False: the thread is to end.
  bool WaitOnce();

  const std::string name_;
  const pid_t owner_;
  const int wake_;  // an eventfd; -1 where the process has no descriptor left
  Prepare prepare_;
  React react_;
  std::vector<pollfd> entries_;  // the thread's
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

// Makes calls one after the other, in the order in which they were added, where the thread that
// adds one must not wait for it: calls of a foreign library, or calls that take a lock of Python's.
// What has state of its own is an actor instead (docs/actors.md). The thread starts with the first
// call.
// Threads: any; not from a call, but for Add. Owns: the thread, and the calls until they are made.
class CallThread {
 public:
  using Call = absl::AnyInvocable<void()>;

  // `name` is the thread's, whose first 15 letters count. `most_waiting`: calls that are there at
  // once.
  explicit CallThread(std::string name, size_t most_waiting = SIZE_MAX);
  // Blocks: until all calls are made; they have deadlines of their own.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

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

#endif  // PELTON_CORE_BASE_THREADS_H_
