// A thread that waits for descriptors.
#ifndef PELTON_CORE_BASE_POLL_THREAD_H_
#define PELTON_CORE_BASE_POLL_THREAD_H_

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

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

}  // namespace pelton

#endif  // PELTON_CORE_BASE_POLL_THREAD_H_
