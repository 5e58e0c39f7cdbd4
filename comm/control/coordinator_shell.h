// What stands between the coordinator's state machine and gRPC: a lock, a timer and the tables of
// who waits for what.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_SHELL_H_
#define PELTON_COMM_CONTROL_COORDINATOR_SHELL_H_

#include <cstdint>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/control/coordinator_state.h"
#include "comm/control/heartbeat_stream.h"
#include "comm/control/parked_call.h"
#include "core/base/sync.h"

namespace pelton {

// Feeds events to the state machine under its lock, and carries the effects out after releasing it.
// Threads: any. Owns: the state and the timer's thread; borrows calls and streams, which take
// themselves out before they die.
class CoordinatorShell {
 public:
  explicit CoordinatorShell(absl::Duration heartbeat_timeout);
  ~CoordinatorShell();

  using Feed = absl::FunctionRef<absl::Status(CoordinatorState&, Outbox*)>;
  using FeedCall = absl::FunctionRef<void(CoordinatorState&, const Call&, Outbox*)>;

  // An event that is answered at once.
  absl::Status Apply(Feed feed);
  // An event whose reply `parked` sends, now or later.
  void Park(ParkedCall* parked, int64_t timeout_us, FeedCall feed);
  void OnCallCancelled(ParkedCall* parked);

  // Takes a stream in, or ends it if the shell is stopping.
  void AddStream(HeartbeatStream* stream);
  // False if the stream is to read no more.
  bool OnHeartbeat(HeartbeatStream* stream, const proto::HeartbeatRequest& request);
  void OnStepDone(HeartbeatStream* stream, bool ok);
  void OnStreamBroke(HeartbeatStream* stream);
  void OnStreamDone(HeartbeatStream* stream);

  absl::Status AwaitEmpty(absl::Time deadline);
  // Ends every call and stream, and refuses those to come. Blocks: never.
  void Stop();

 private:
  // What is to be done once the lock is released.
  struct Actions {
    std::vector<std::pair<ParkedCall*, Reply>> answers;
    std::vector<std::pair<HeartbeatStream*, HeartbeatStream::Step>> steps;
  };

  void Dispatch(Outbox outbox, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddStep(HeartbeatStream* stream, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Admit(HeartbeatStream* stream, const proto::HeartbeatRequest& request,
                     Outbox* outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BreakLocked(HeartbeatStream* stream, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void CarryOut(Actions actions);
  void RunTimer();

  Mutex mutex_;
  CondVar timer_changed_;
  CondVar rank_left_;
  CoordinatorState state_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, ParkedCall*> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<HeartbeatStream*> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<Caller, HeartbeatStream*> stream_of_ ABSL_GUARDED_BY(mutex_);
  absl::Time timer_wakes_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_COORDINATOR_SHELL_H_
