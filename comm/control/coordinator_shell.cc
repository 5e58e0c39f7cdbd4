#include "comm/control/coordinator_shell.h"

#include "absl/strings/str_cat.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/status.h"

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

grpc::Status ToGrpc(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.ok()) return grpc::Status::OK;
  context->AddTrailingMetadata(wire::kOriginKey, wire::kOriginCoordinator);
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

void ParkedCall::Answer(Reply reply) {
  const grpc::Status status = ToGrpc(reply.status, context_);
  if (status.ok()) Fill(std::move(reply));
  End(status);
}

void ParkedCall::Cancel() {
  is_cancelled_.store(true);  // before the shell's lock: Park looks under it
  shell_->OnCallCancelled(this);
}

namespace {

using Step = HeartbeatStream::Step;

grpc::Status StoppingStatus() {
  return {grpc::StatusCode::UNAVAILABLE, "the coordinator is being stopped"};
}

// A stream's end needs no mark of origin: the order before it has said all.
grpc::Status EndOf(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace

CoordinatorShell::CoordinatorShell(absl::Duration heartbeat_timeout)
    : state_(heartbeat_timeout), timer_(&CoordinatorShell::RunTimer, this) {}

CoordinatorShell::~CoordinatorShell() {
  Stop();
  timer_.join();
}

absl::Status CoordinatorShell::Apply(Feed feed) {
  Actions actions;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    Outbox outbox;
    status = feed(state_, &outbox);
    Dispatch(std::move(outbox), &actions);
  }
  CarryOut(std::move(actions));
  return status;
}

void CoordinatorShell::Park(ParkedCall* parked, int64_t timeout_us, FeedCall feed) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    parked->id = ++last_call_;
    if (stopping_) {
      actions.answers.emplace_back(parked, Reply{.status = absl::UnavailableError("stopping")});
    } else if (parked->is_cancelled()) {
      actions.answers.emplace_back(parked, Reply{.status = absl::CancelledError("")});
    } else {
      calls_.emplace(parked->id, parked);
      const absl::Time now = Clock::Real().Now();
      Outbox outbox;
      feed(state_, {parked->id, now, wire::DeadlineFromProto(now, timeout_us)}, &outbox);
      Dispatch(std::move(outbox), &actions);
    }
  }
  CarryOut(std::move(actions));
}

void CoordinatorShell::OnCallCancelled(ParkedCall* parked) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    // Whoever takes a call out of the table answers it.
    if (calls_.erase(parked->id) == 0) return;
    Outbox outbox;
    state_.Cancel(parked->job(), parked->id, &outbox);
    Dispatch(std::move(outbox), &actions);
    actions.answers.emplace_back(parked, Reply{.status = absl::CancelledError("")});
  }
  CarryOut(std::move(actions));
}

void CoordinatorShell::AddStream(HeartbeatStream* stream) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    streams_.insert(stream);
    if (stopping_) stream->End(StoppingStatus());
    AddStep(stream, &actions);
  }
  CarryOut(std::move(actions));
}

bool CoordinatorShell::OnHeartbeat(HeartbeatStream* stream,
                                   const proto::HeartbeatRequest& request) {
  Actions actions;
  bool more;
  {
    MutexLock lock(&mutex_);
    if (stream->ending()) return false;
    Outbox outbox;
    const absl::Status status = Admit(stream, request, &outbox);
    if (!status.ok()) stream->End(EndOf(status));
    more = status.ok();
    Dispatch(std::move(outbox), &actions);
    AddStep(stream, &actions);
  }
  CarryOut(std::move(actions));
  return more;
}

absl::Status CoordinatorShell::Admit(HeartbeatStream* stream,
                                     const proto::HeartbeatRequest& request, Outbox* outbox) {
  const Caller caller = wire::FromProto(request.caller());
  if (!stream->caller) {
    RETURN_IF_ERROR(state_.OpenStream(caller, Clock::Real().Now(), outbox));
    stream->caller = caller;
    stream_of_.emplace(caller, stream);
    proto::Order watching;
    watching.set_kind(proto::Order::WATCHING);
    watching.set_generation(caller.generation.value());
    stream->Enqueue(std::move(watching));
  }
  if (caller != *stream->caller) {
    return absl::InvalidArgumentError(absl::StrCat(
        "caller: is rank ", caller.rank.value(), " of generation ", caller.generation.value(),
        ", the stream is that of rank ", stream->caller->rank.value()));
  }
  proto::Order echo;
  echo.set_kind(proto::Order::ECHO);
  echo.set_generation(caller.generation.value());
  echo.set_number(request.number());
  stream->Enqueue(std::move(echo));
  const absl::Duration round_trip = absl::Microseconds(request.round_trip_us());
  return state_.Heartbeat(caller, {Round(request.round()), round_trip}, Clock::Real().Now());
}

void CoordinatorShell::OnStepDone(HeartbeatStream* stream, bool ok) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    stream->StepEnded(ok);
    if (!ok) BreakLocked(stream, &actions);
    AddStep(stream, &actions);
  }
  CarryOut(std::move(actions));
}

void CoordinatorShell::OnStreamBroke(HeartbeatStream* stream) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    BreakLocked(stream, &actions);
    AddStep(stream, &actions);
  }
  CarryOut(std::move(actions));
}

void CoordinatorShell::BreakLocked(HeartbeatStream* stream, Actions* actions) {
  stream->End(grpc::Status::CANCELLED);
  if (!stream->caller || stopping_) return;
  const auto found = stream_of_.find(*stream->caller);
  if (found == stream_of_.end() || found->second != stream) return;  // it has left
  stream_of_.erase(found);
  Outbox outbox;
  state_.StreamBroke(*stream->caller, Clock::Real().Now(), &outbox);
  Dispatch(std::move(outbox), actions);
}

void CoordinatorShell::OnStreamDone(HeartbeatStream* stream) {
  MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void CoordinatorShell::Dispatch(Outbox outbox, Actions* actions) {
  for (Reply& reply : outbox.replies) {
    const auto found = calls_.find(reply.call);
    if (found == calls_.end()) continue;
    actions->answers.emplace_back(found->second, std::move(reply));
    calls_.erase(found);
  }
  for (const AddressedOrder& addressed : outbox.orders) {
    const auto found = stream_of_.find(addressed.to);
    if (found == stream_of_.end()) continue;
    proto::Order order;
    wire::ToProto(addressed.order, addressed.to.generation, &order);
    found->second->Enqueue(std::move(order));
    AddStep(found->second, actions);
  }
  for (const EndedStream& ended : outbox.ended_streams) {
    const auto found = stream_of_.find(ended.rank);
    if (found == stream_of_.end()) continue;
    if (!ended.status.ok()) {
      proto::Order last;
      wire::ToProto({Order::Kind::kAbort, ended.rank.rank, ended.status}, ended.rank.generation,
                    &last);
      last.set_final(true);
      found->second->Enqueue(std::move(last));
    }
    found->second->End(EndOf(ended.status));
    AddStep(found->second, actions);
    stream_of_.erase(found);
  }
  if (state_.NextDeadline() < timer_wakes_) timer_changed_.Signal();
  rank_left_.SignalAll();
}

void CoordinatorShell::AddStep(HeartbeatStream* stream, Actions* actions) {
  const Step step = stream->NextStep();
  if (step != Step::kNone) actions->steps.emplace_back(stream, step);
}

void CoordinatorShell::CarryOut(Actions actions) {
  for (auto& [call, reply] : actions.answers) call->Answer(std::move(reply));
  for (const auto& [stream, step] : actions.steps) stream->Take(step);
}

void CoordinatorShell::RunTimer() {
  while (true) {
    Actions actions;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      timer_wakes_ = state_.NextDeadline();
      if (Clock::Real().Now() < timer_wakes_) {
        timer_changed_.WaitWithDeadline(&mutex_, timer_wakes_);
      }
      if (stopping_) return;
      Outbox outbox;
      state_.Tick(Clock::Real().Now(), &outbox);
      Dispatch(std::move(outbox), &actions);
    }
    CarryOut(std::move(actions));
  }
}

absl::Status CoordinatorShell::AwaitEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (state_.rank_count() > 0) {
    if (rank_left_.WaitWithDeadline(&mutex_, deadline) && state_.rank_count() > 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("ranks that have not left: ", state_.Describe()));
    }
  }
  return absl::OkStatus();
}

void CoordinatorShell::Stop() {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    timer_changed_.Signal();
    for (const auto& [id, call] : calls_) {
      actions.answers.emplace_back(call, Reply{.status = absl::UnavailableError("stopping")});
    }
    calls_.clear();
    stream_of_.clear();
    for (HeartbeatStream* const stream : streams_) {
      stream->End(StoppingStatus());
      AddStep(stream, &actions);
    }
  }
  CarryOut(std::move(actions));
}

}  // namespace pelton
