// The coordinator's end of one rank's heartbeat stream.
#ifndef PELTON_COMM_CONTROL_HEARTBEAT_STREAM_H_
#define PELTON_COMM_CONTROL_HEARTBEAT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>

#include "comm/control/coordinator_messages.h"
#include "proto/control.grpc.pb.h"

namespace pelton {

class CoordinatorShell;

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

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_HEARTBEAT_STREAM_H_
