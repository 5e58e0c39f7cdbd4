// What stands between the coordinator's state machine and gRPC: a lock, a timer and the tables of
// who waits for what.
#ifndef PELTON_COMM_CONTROL_COORDINATOR_SHELL_H_
#define PELTON_COMM_CONTROL_COORDINATOR_SHELL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/control/coordinator_messages.h"
#include "comm/control/coordinator_state.h"
#include "core/base/sync.h"
#include "proto/control.grpc.pb.h"

namespace pelton {

class CoordinatorShell;

// The coordinator's end of one rank's heartbeat stream.

// gRPC may call back from inside any operation, so none is started under the shell's lock: NextStep
// decides there what to do, Take does it after the lock has been released. While a step is under
// way there is no other, so the stream cannot end between the two. Threads: Enqueue, End, NextStep,
// StepEnded and `caller` under the shell's lock; Take by the thread that was given the step; the
// reactions are gRPC's. Owns: orders not yet sent; itself, until OnDone.
class HeartbeatStream final
    : public grpc::ServerBidiReactor<proto::HeartbeatRequest, proto::Order> {
 public:
  enum class Step { kNone, kWrite, kFinish };

  explicit HeartbeatStream(CoordinatorShell* shell) : shell_(shell) {}
  void Start() { StartRead(&incoming_); }

  void Enqueue(proto::Order order) { outgoing_.push_back(std::move(order)); }
  // To be ended once all that is queued has been sent; the first status counts.
  void End(grpc::Status status);
  bool ending() const { return end_.has_value(); }
  Step NextStep();
  // What was last taken is done; after a failure nothing more is sent.
  void StepEnded(bool ok);
  void Take(Step step);

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Whom it belongs to, once its first heartbeat has been admitted.
  std::optional<Caller> caller;

 private:
  CoordinatorShell* const shell_;
  proto::HeartbeatRequest incoming_;
  std::deque<proto::Order> outgoing_;
  proto::Order writing_;
  bool stepping_ = false;  // a step has been given and has not ended; the last one never does
  bool broken_ = false;
  std::optional<grpc::Status> end_;
};

// A call with one request whose reply may come later.

// The status as gRPC carries it, marked as the coordinator's own.
grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context);

// Threads: Answer by the one thread that took the call out of the shell's table; is_cancelled by
// any. Owns: itself, until gRPC is done with it.
class ParkedCall {
 public:
  ParkedCall(CoordinatorShell* shell, grpc::CallbackServerContext* context)
      : shell_(shell), context_(context) {}
  virtual ~ParkedCall() = default;

  // Sends the reply.
  void Answer(Reply reply);
  // Sends a status alone, that of a call which was never parked.
  void AnswerNow(const absl::Status& status) { End(ToGrpc(status, context_)); }
  // Of the caller; before it is parked.
  void set_job(std::string job) { job_ = std::move(job); }
  const std::string& job() const { return job_; }
  bool is_cancelled() const { return is_cancelled_.load(); }

  uint64_t id = 0;  // given by the shell

 protected:
  // That nobody waits for the reply any more. It may be parked, or not yet.
  void Cancel();
  virtual void Fill(Reply reply) = 0;
  virtual void End(const grpc::Status& status) = 0;

 private:
  CoordinatorShell* const shell_;
  grpc::CallbackServerContext* const context_;
  std::string job_;
  std::atomic<bool> is_cancelled_ = false;
};

// A unary call, served as one whose client streams: so gRPC asks for the request when it is told
// to, and not before anybody has looked who calls. Threads: as ParkedCall. Owns: the request.
template <typename Request, typename Response>
class CallOf final : public grpc::ServerReadReactor<Request>, public ParkedCall {
 public:
  using Begin = std::function<void(CallOf& call)>;
  using Filler = void (*)(Reply reply, Response* response);

  // `begin` answers the call or parks it, once its request is there; `fill` writes a successful
  // reply of a parked one into the response.
  CallOf(CoordinatorShell* shell, grpc::CallbackServerContext* context, Response* response,
         Begin begin)
      : ParkedCall(shell, context), response_(response), begin_(std::move(begin)) {}

  void Refuse(const grpc::Status& status) { this->Finish(status); }
  void Read() { this->StartRead(&request_); }
  void set_filler(Filler fill) { fill_ = fill; }
  const Request& request() const { return request_; }

  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish({grpc::StatusCode::INVALID_ARGUMENT, "a call without a request"});
    begin_(*this);
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { delete this; }

 private:
  void Fill(Reply reply) override { fill_(std::move(reply), response_); }
  void End(const grpc::Status& status) override { this->Finish(status); }

  Request request_;
  Response* const response_;
  const Begin begin_;
  Filler fill_ = nullptr;
};

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
