// The coordinator without a wire: events in, effects out, time passed in.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_STATE_H_
#define PELTON_COMM_CONTROL_COORDINATOR_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/control/coordinator_messages.h"
#include "comm/control/job_state.h"
#include "core/base/ids.h"

namespace pelton {

// All jobs of one coordinator. No threads, no clock, no I/O: the same events at the same times give
// the same effects. A job that is over leaves nothing but the number of its generation, which is
// never given again.
// Threads: one at a time. Owns: the state of every job.
class CoordinatorState {
 public:
  explicit CoordinatorState(absl::Duration heartbeat_timeout)
      : heartbeat_timeout_(heartbeat_timeout) {}

  // Calls: each gets one Reply in some outbox, at its deadline at the latest, unless it is
  // cancelled first (ONCE-1).
  void Join(const Call& call, JoinRequest request, Outbox* outbox);
  void Ask(const Call& call, const Caller& caller, ControlQuestion question, Outbox* outbox);
  // The process that made the call is gone, or no longer waits.
  void Cancel(const std::string& job, uint64_t call, Outbox* outbox);

  // Events with an answer of their own. After an OpenStream that returned OK orders for `caller`
  // may appear in any outbox, until an EndedStream for it does.
  absl::Status OpenStream(const Caller& caller, absl::Time now, Outbox* outbox);
  absl::Status Heartbeat(const Caller& caller, const Beat& beat, absl::Time now);
  absl::Status Report(const Caller& caller, const absl::Status& reason, Outbox* outbox);
  absl::Status Leave(const Caller& caller, Outbox* outbox);
  // The stream, or the process behind it, is gone: a death, unless the rank has left.
  void StreamBroke(const Caller& caller, absl::Time now, Outbox* outbox);

  void Tick(absl::Time now, Outbox* outbox);
  // When to call Tick at the latest.
  absl::Time NextDeadline() const;

  // Ranks present, over all jobs.
  size_t rank_count() const;
  // "job 'x': rank 0, 2", for error messages.
  std::string Describe() const;

 private:
  absl::StatusOr<JobState*> Find(const Caller& caller);
  void Sweep(const std::string& job);

  const absl::Duration heartbeat_timeout_;
  std::map<std::string, JobState> jobs_;
  Generation last_generation_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_COORDINATOR_STATE_H_
