#include "comm/control/heartbeat_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"

namespace pelton {

HeartbeatClient::HeartbeatClient(proto::Coordinator::Stub* stub, Inbox<Order>* inbox,
                                 Options options)
    : options_(std::move(options)), inbox_(*inbox) {
  context_.AddMetadata(wire::kTokenKey, options_.token);
  stream_ = stub->Heartbeat(&context_);
  beats_ = std::thread(&HeartbeatClient::RunBeats, this);
  reader_ = std::thread(&HeartbeatClient::RunReader, this);
}

absl::Status HeartbeatClient::AwaitOpen(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (state_ == State::kOpening) {
    if (changed_.WaitWithDeadline(&mutex_, deadline) && state_ == State::kOpening) {
      return absl::DeadlineExceededError(
          absl::StrCat("the coordinator at ", options_.address, " did not open a stream in time"));
    }
  }
  return state_ == State::kOpen ? absl::OkStatus() : loss_;
}

void HeartbeatClient::Stop() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    changed_.SignalAll();
  }
  inbox_.Close();
  context_.TryCancel();
  reader_.join();
}

void HeartbeatClient::RunBeats() {
  proto::HeartbeatRequest beat;
  wire::ToProto(options_.self, beat.mutable_caller());
  while (true) {
    beat.set_round(round_.load(std::memory_order_relaxed));
    beat.set_round_trip_us(round_trip_us_.load(std::memory_order_relaxed));
    sent_ns_.store(absl::ToUnixNanos(Clock::Real().Now()), std::memory_order_relaxed);
    beat.set_number(beat_number_.fetch_add(1, std::memory_order_release) + 1);
    if (!stream_->Write(beat)) return;
    const absl::Time next = Clock::Real().Now() + options_.interval;
    MutexLock lock(&mutex_);
    while (!stopping_ && reading_) {
      if (changed_.WaitWithDeadline(&mutex_, next)) break;
    }
    if (stopping_ || !reading_) return;
  }
}

void HeartbeatClient::RunReader() {
  proto::Order message;
  while (stream_->Read(&message)) Receive(message);
  {
    MutexLock lock(&mutex_);
    reading_ = false;
    changed_.SignalAll();
  }
  beats_.join();
  End(stream_->Finish());
}

void HeartbeatClient::Receive(const proto::Order& message) {
  if (Generation(message.generation()) != options_.self.generation) return;  // GEN-1
  if (message.kind() == proto::Order::ECHO) return OnEcho(message.number());
  if (message.kind() == proto::Order::WATCHING) {
    MutexLock lock(&mutex_);
    state_ = State::kOpen;
    changed_.SignalAll();
    return;
  }
  given_up_ = given_up_ || message.final();
  inbox_.Push(wire::FromProto(message));
  inbox_.Deliver();
}

void HeartbeatClient::OnEcho(uint64_t beat_number) {
  // Of the last beat only: when an earlier one was sent is forgotten.
  if (beat_number != beat_number_.load(std::memory_order_acquire)) return;
  const absl::Time sent = absl::FromUnixNanos(sent_ns_.load(std::memory_order_relaxed));
  const int64_t taken_us = absl::ToInt64Microseconds(Clock::Real().Now() - sent);
  // 0 says that nothing is known.
  round_trip_us_.store(std::max<int64_t>(taken_us, 1), std::memory_order_relaxed);
}

void HeartbeatClient::End(const grpc::Status& status) {
  const absl::Status loss = absl::UnavailableError(
      absl::StrCat("rank ", options_.self.rank.value(), ": coordinator lost at ", options_.address,
                   ": ", status.error_message()));
  bool tell;
  {
    MutexLock lock(&mutex_);
    // A stream that never opened is Join's error, not an order; one that ends well was ended by
    // this rank's Leave.
    tell = !status.ok() && !stopping_ && !given_up_ && state_ == State::kOpen;
    loss_ = loss;
    state_ = State::kEnded;
    changed_.SignalAll();
  }
  if (!tell) return;
  inbox_.Push({Order::Kind::kCoordinatorLost, std::nullopt, loss});
  inbox_.Deliver();
}

}  // namespace pelton
