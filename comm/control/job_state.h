// One job, from its first rank's Join to its last rank's Leave or death.
#ifndef PELTON_COMM_CONTROL_JOB_STATE_H_
#define PELTON_COMM_CONTROL_JOB_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/control/assembly.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/ids.h"

namespace pelton {

// A state machine: assembling, then running until no rank is left. A rank is alive until it leaves,
// its stream ends before that, or it is silent for `heartbeat_timeout`. From the first loss, report
// or leave on no collective can succeed, so every one that waits or is called later is told why.
// Threads: one at a time. Owns: all that the coordinator knows of the job.
class JobState {
 public:
  JobState(std::string name, Generation generation, absl::Duration heartbeat_timeout);
  ~JobState();

  void Join(const Call& call, JoinRequest request, Outbox* outbox);
  // Nobody waits for the reply any more.
  void Cancel(uint64_t call, Outbox* outbox);

  // OK if `caller` is a live rank of this generation. Errors: FailedPrecondition: it never was, or
  // is of another generation (GEN-1); Aborted: it was given up, or has left.
  absl::Status Admit(const Caller& caller) const;

  // These take a rank that Admit let through.
  void Ask(const Call& call, Rank rank, ControlQuestion question, Outbox* outbox);
  absl::Status OpenStream(Rank rank, absl::Time now, Outbox* outbox);
  void Heartbeat(Rank rank, const Beat& beat, absl::Time now);
  // `how` it was noticed: the stream broke, ...
  void Lose(Rank rank, absl::Time now, const std::string& how, Outbox* outbox);
  absl::Status Report(Rank rank, const absl::Status& reason, Outbox* outbox);
  void Leave(Rank rank, Outbox* outbox);

  void Tick(absl::Time now, Outbox* outbox);
  // When Tick has something to do at the earliest; may be too early, never too late.
  absl::Time NextDeadline() const;
  // Whether nothing needs to be remembered.
  bool over() const;
  // Ranks that wait to join, or have joined and are alive.
  std::vector<Rank> present() const;

 private:
  struct Answerers;  // of the ranks' questions; only the .cc file names the kinds
  enum class Presence { kAlive, kLeft, kLost };
  // Threads: one at a time. Owns: its status.
  struct Watched {
    Presence presence = Presence::kAlive;
    bool streaming = false;
    bool reported = false;
    absl::Time last_heard;
    Round round;
    absl::Status lost_because;
  };

  Watched& watched(Rank rank) { return ranks_[rank.value()]; }
  void StartWatching(absl::Time now);
  // Gives the order to every live rank but the culprit.
  void Issue(Order order, Outbox* outbox);
  Caller Address(Rank rank) const { return {name_, rank, generation_}; }

  const std::string name_;
  const Generation generation_;
  const absl::Duration heartbeat_timeout_;
  Assembly assembly_;
  std::vector<Watched> ranks_;  // by rank; empty while assembling
  int alive_count_ = 0;
  std::unique_ptr<Answerers> answerers_;  // null while assembling
  std::vector<Order> orders_;             // all of this generation, for streams that open late
  absl::Time liveness_check_ = absl::InfiniteFuture();
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_JOB_STATE_H_
