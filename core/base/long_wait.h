// What a wait does between two parks: it asks whether its thread was interrupted, and tells when it
// has lasted long.
#ifndef PELTON_CORE_BASE_LONG_WAIT_H_
#define PELTON_CORE_BASE_LONG_WAIT_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace pelton {

// Answers whether the calling thread shall give its wait up, by an error of InterruptedError.
using InterruptCheck = absl::Status (*)();

// Has all waits ask `check`; null, as at first: nothing interrupts them. The code that handles the
// process's signals installs one. Each thread asks at most once in `interval` of real time, which a
// test in virtual time sets to zero. Threads: any.
inline constexpr absl::Duration kInterruptInterval = absl::Milliseconds(50);
void SetInterruptCheck(InterruptCheck check, absl::Duration interval = kInterruptInterval);

// Asks the check that is installed, or not yet again; a waiting loop calls it between two parks of
// at most kInterruptInterval.
// Threads: any. Blocks: as the check. Errors: InterruptedError: the wait is to end.
absl::Status CheckInterrupt();
// Whether CheckInterrupt would ask now. A check may last as long as a user's signal handler does: a
// wait in which its thread runs what others need hands that over before it asks.
bool InterruptIsDue();
// After how long a wait that is told of what it waits for looks up: kInterruptInterval, and where
// no check is installed, as in a daemon, a second, so that a process at rest is.
absl::Duration InterruptSlice();

// The error of an interrupted wait, and whether an error is one; Annotate keeps that.
absl::Status InterruptedError(absl::string_view text);
bool IsInterrupted(const absl::Status& status);
// `status` as peers are to be told it: as an abort by another rank.
absl::Status AsAbort(const absl::Status& status);

// Names what the thread is at ("barrier of group 'default'") for the reports of waits in its scope;
// the innermost name counts. Costs a few nanoseconds.
// Threads: the one that made it. Owns: nothing; both names outlive it.
class CallName {
 public:
  // `group` may be empty: then `call` says all.
  explicit CallName(absl::string_view call, absl::string_view group = "");
  ~CallName();
  CallName(const CallName&) = delete;
  CallName& operator=(const CallName&) = delete;

  std::string ToString() const;
  // Of this thread; "": none.
  static std::string Current();

 private:
  const absl::string_view call_;
  const absl::string_view group_;
  const CallName* const outer_;
};

// After how long a wait is told of first; zero: never. Threads: any.
void SetStallInterval(absl::Duration interval);

// Tells of one wait when it has lasted for the stall interval, and again after twice as long each
// time.
// Threads: one at a time. Owns: when it told last.
class StallReport {
 public:
  // `describe` says who waits for whom in what, given how long it has lasted ("30 s since
  // 12:00:00"); its line goes to Log. Another `since` is another wait.
  void Look(absl::Time since, absl::Time now,
            absl::FunctionRef<std::string(absl::string_view waited)> describe);

 private:
  absl::Time since_ = absl::InfinitePast();
  absl::Duration next_;
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_LONG_WAIT_H_
