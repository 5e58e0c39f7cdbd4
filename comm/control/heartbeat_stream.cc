#include "comm/control/heartbeat_stream.h"

#include <utility>

#include "comm/control/coordinator_shell.h"

namespace pelton {

void HeartbeatStream::End(grpc::Status status) {
  if (!end_) end_ = std::move(status);
}

HeartbeatStream::Step HeartbeatStream::NextStep() {
  if (stepping_) return Step::kNone;
  if (!broken_ && !outgoing_.empty()) {
    writing_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    stepping_ = true;
    return Step::kWrite;
  }
  if (!end_) return Step::kNone;
  stepping_ = true;
  return Step::kFinish;
}

void HeartbeatStream::StepEnded(bool ok) {
  stepping_ = false;
  broken_ = broken_ || !ok;
}

void HeartbeatStream::Take(Step step) {
  switch (step) {
    case Step::kNone:
      return;
    case Step::kWrite:
      StartWrite(&writing_);
      return;
    case Step::kFinish:
      Finish(*end_);
      return;
  }
}

void HeartbeatStream::OnWriteDone(bool ok) { shell_->OnStepDone(this, ok); }
void HeartbeatStream::OnCancel() { shell_->OnStreamBroke(this); }

void HeartbeatStream::OnReadDone(bool ok) {
  if (!ok) return shell_->OnStreamBroke(this);
  if (shell_->OnHeartbeat(this, incoming_)) StartRead(&incoming_);
}

void HeartbeatStream::OnDone() {
  shell_->OnStreamDone(this);
  delete this;
}

}  // namespace pelton
