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
  beats_.Add([this] { RunBeats(); });
  reader_.Add([this] { RunReader(); });
}

absl::Status HeartbeatClient::AwaitOpen(absl::Time deadline) {
  if (opening_.future.WaitUntil(deadline)) return std::move(opening_.future).Take();
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator at ", options_.address, " did not open a stream in time"));
}

void HeartbeatClient::Stop() {
  if (is_stopping_.exchange(true)) return;
  between_beats_.Kick();
  inbox_.Close();
  context_.TryCancel();
  reader_.AwaitIdle(absl::InfiniteFuture());
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
    // The kick that ends the beats comes after what GoesOn looks at, and ends a park that is about
    // to begin, too.
    while (GoesOn() && Clock::Real().Now() < next) {
      between_beats_.Park(next - Clock::Real().Now());
    }
    if (!GoesOn()) return;
  }
}

void HeartbeatClient::RunReader() {
  proto::Order message;
  while (stream_->Read(&message)) Receive(message);
  is_reading_.store(false);
  between_beats_.Kick();
  beats_.AwaitIdle(absl::InfiniteFuture());  // gRPC finishes a stream that nobody writes to
  End(stream_->Finish());
}

void HeartbeatClient::Receive(const proto::Order& message) {
  if (Generation(message.generation()) != options_.self.generation) return;  // GEN-1
  if (message.kind() == proto::Order::ECHO) return OnEcho(message.number());
  if (message.kind() == proto::Order::WATCHING) {
    if (!std::exchange(is_open_, true)) opening_.promise.Set(absl::OkStatus());
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
  // A stream that never opened is Join's error, not an order; one that ends well was ended by this
  // rank's Leave.
  if (!is_open_) return opening_.promise.Set(loss);
  if (status.ok() || is_stopping_.load() || given_up_) return;
  inbox_.Push({Order::Kind::kCoordinatorLost, std::nullopt, loss});
  inbox_.Deliver();
}

}  // namespace pelton
