#include "comm/control/coordinator_actor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "comm/control/wire.h"
#include "core/actor/context.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Of one stream, that its rank does not take: it is read no further meanwhile.
constexpr int kMostEchoes = 16;

absl::Status StoppingError() { return absl::UnavailableError("the coordinator is being stopped"); }

proto::Order MakeOrder(proto::Order::Kind kind, Generation generation) {
  proto::Order order;
  order.set_kind(kind);
  order.set_generation(generation.value());
  return order;
}

}  // namespace

void EndUnserved::operator()(ServedCall* call) const { call->Answer({.status = StoppingError()}); }
void EndUnserved::operator()(ServedStream* stream) const { stream->End(StoppingError()); }

void CoordinatorActor::Handle(BeginCall begun) {
  if (stopping_) return;  // and so is answered
  if (begun.owed->is_cancelled()) {
    return begun.owed.release()->Answer({.status = absl::CancelledError("")});
  }
  // Whoever takes a call out of the table answers it. Until then it is there for Feed.
  ServedCall& call = *begun.owed;
  calls_.emplace(begun.call, ParkedCall{std::move(begun.owed), std::move(begun.job)});
  const absl::Time now = context().Now();
  Outbox outbox;
  call.Feed(state_, {begun.call, now, wire::DeadlineFromProto(now, begun.timeout_us)}, &outbox);
  Dispatch(std::move(outbox));
}

void CoordinatorActor::Handle(CancelCall cancelled) {
  const auto found = calls_.find(cancelled.call);
  if (found == calls_.end()) return;  // it has been answered, or is still to come and will see
  ParkedCall call = std::move(found->second);
  calls_.erase(found);
  Outbox outbox;
  state_.Cancel(call.job, cancelled.call, &outbox);
  call.owed.release()->Answer({.status = absl::CancelledError("")});
  Dispatch(std::move(outbox));
}

void CoordinatorActor::Handle(BeginStream begun) {
  if (stopping_) return;  // and so is ended
  streams_.emplace(begun.stream, Stream{std::move(begun.owed)});
  Advance(begun.stream);
}

void CoordinatorActor::Handle(HeartbeatCame came) {
  const auto found = streams_.find(came.stream);
  if (found == streams_.end()) return;
  found->second.reading = false;
  if (found->second.end) return Advance(came.stream);
  Outbox outbox;
  absl::Status status = Admit(found->second, came, &outbox);
  Dispatch(std::move(outbox));
  if (!status.ok()) return Lose(came.stream, std::move(status));
  Advance(came.stream);
}

absl::Status CoordinatorActor::Admit(Stream& stream, const HeartbeatCame& came, Outbox* outbox) {
  const Caller& caller = came.caller;
  if (!stream.caller) {
    RETURN_IF_ERROR(state_.OpenStream(caller, context().Now(), outbox));
    stream.caller = caller;
    stream_of_.emplace(caller, came.stream);
    stream.outgoing.push_back(MakeOrder(proto::Order::WATCHING, caller.generation));
  }
  if (caller != *stream.caller) {
    return absl::InvalidArgumentError(absl::StrCat(
        "caller: is rank ", caller.rank.value(), " of generation ", caller.generation.value(),
        ", the stream is that of rank ", stream.caller->rank.value()));
  }
  proto::Order echo = MakeOrder(proto::Order::ECHO, caller.generation);
  echo.set_number(came.number);
  stream.outgoing.push_back(std::move(echo));
  ++stream.echoes;
  return state_.Heartbeat(caller, came.beat, context().Now());
}

void CoordinatorActor::Handle(OrderWritten written) {
  const auto found = streams_.find(written.stream);
  if (found == streams_.end()) return;
  found->second.writing = false;
  if (written.ok) return Advance(written.stream);
  found->second.mute = true;
  Lose(written.stream, absl::CancelledError(""));
}

void CoordinatorActor::Handle(StreamBroke broke) { Lose(broke.stream, std::move(broke.why)); }

void CoordinatorActor::Lose(uint64_t id, absl::Status why) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  if (!stream.end) stream.end = std::move(why);
  // One that has left, or was given up, is registered no more, and no other stream in its place.
  if (stream.caller && stream_of_.erase(*stream.caller) > 0) {
    Outbox outbox;
    state_.StreamBroke(*stream.caller, context().Now(), &outbox);
    Dispatch(std::move(outbox));
  }
  Advance(id);
}

void CoordinatorActor::Advance(uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  if (!stream.writing && !stream.mute && !stream.outgoing.empty()) WriteNext(id, stream);
  if (!stream.end) return ReadNext(id, stream);
  if (stream.writing) return;
  // From here on it is in no table, so that what it still reports finds nothing.
  ServedStream* const ended = stream.owed.release();
  const absl::Status status = *std::move(stream.end);
  streams_.erase(found);
  ended->End(status);
}

void CoordinatorActor::WriteNext(uint64_t id, Stream& stream) {
  absl::StatusOr<CoordinatorRoom> room = ReserveFor(id);
  if (!room.ok()) {
    stream.mute = true;
    return;
  }
  proto::Order order = std::move(stream.outgoing.front());
  stream.outgoing.pop_front();
  if (order.kind() == proto::Order::ECHO) --stream.echoes;
  stream.writing = true;
  stream.owed->Write(std::move(order), *std::move(room));
}

// A rank that does not take its echoes is not read, so that it cannot have them heap up here.
void CoordinatorActor::ReadNext(uint64_t id, Stream& stream) {
  if (stream.reading || stream.echoes >= kMostEchoes) return;
  stream.reading = true;
  absl::StatusOr<CoordinatorRoom> room = ReserveFor(id);
  if (room.ok()) stream.owed->Read(*std::move(room));
}

absl::StatusOr<CoordinatorRoom> CoordinatorActor::ReserveFor(uint64_t id) {
  absl::StatusOr<CoordinatorRoom> room = context().RefTo(*this).Reserve();
  // Not here, in the middle of another stream's loss; and a timer's message needs no room.
  if (!room.ok()) context().SendAfter(*this, absl::ZeroDuration(), StreamBroke{id, room.status()});
  return room;
}

void CoordinatorActor::Dispatch(Outbox outbox) {
  for (Reply& reply : outbox.replies) {
    const auto found = calls_.find(reply.call);
    if (found == calls_.end()) continue;
    OwedCall call = std::move(found->second.owed);
    calls_.erase(found);
    call.release()->Answer(std::move(reply));
  }
  for (const AddressedOrder& addressed : outbox.orders) {
    const auto found = stream_of_.find(addressed.to);
    if (found == stream_of_.end()) continue;
    proto::Order order;
    wire::ToProto(addressed.order, addressed.to.generation, &order);
    streams_.at(found->second).outgoing.push_back(std::move(order));
    Advance(found->second);
  }
  for (const EndedStream& ended : outbox.ended_streams) EndStream(ended);
  Settle();
}

void CoordinatorActor::EndStream(const EndedStream& ended) {
  const auto found = stream_of_.find(ended.rank);
  if (found == stream_of_.end()) return;
  const uint64_t id = found->second;
  stream_of_.erase(found);
  Stream& stream = streams_.at(id);
  stream.end = ended.status;
  if (!ended.status.ok()) {
    proto::Order last;
    wire::ToProto({Order::Kind::kAbort, ended.rank.rank, ended.status}, ended.rank.generation,
                  &last);
    last.set_final(true);
    stream.outgoing.push_back(std::move(last));
  }
  Advance(id);
}

void CoordinatorActor::Handle(AwaitEmpty question) {
  awaiting_empty_.push_back(std::move(question));
  Settle();
}

// What follows from the state as it is now: who waits for its end, and when to look again.
void CoordinatorActor::Settle() {
  const absl::Time now = context().Now();
  absl::Time next = state_.NextDeadline();
  for (AwaitEmpty& waiting : std::exchange(awaiting_empty_, {})) {
    if (state_.rank_count() == 0) {
      waiting.reply.Set(absl::OkStatus());
    } else if (waiting.deadline <= now) {
      waiting.reply.Set(absl::DeadlineExceededError(
          absl::StrCat("ranks that have not left: ", state_.Describe())));
    } else {
      next = std::min(next, waiting.deadline);
      awaiting_empty_.push_back(std::move(waiting));
    }
  }
  if (next >= rings_at_) return;
  timer_.Cancel();
  rings_at_ = next;
  timer_ = context().SendAfter(*this, std::max(next - now, absl::ZeroDuration()), TimerRang{});
}

// A timer overtakes what waits in the mailbox. A heartbeat that came in time must count although a
// long turn stands before it, so the look at what is due takes its place behind it.
void CoordinatorActor::Handle(TimerRang) {
  if (!context().RefTo(*this).Send(Tick{}).ok()) Handle(Tick{});
}

void CoordinatorActor::Handle(Tick) {
  timer_.Cancel();  // whichever rang: at most one is ever set
  rings_at_ = absl::InfiniteFuture();
  Outbox outbox;
  state_.Tick(context().Now(), &outbox);
  Dispatch(std::move(outbox));
}

void CoordinatorActor::Handle(EndService) {
  stopping_ = true;
  calls_.clear();  // and so answers them
  stream_of_.clear();
  std::vector<uint64_t> ids;
  for (auto& [id, stream] : streams_) {
    if (!stream.end) stream.end = StoppingError();
    ids.push_back(id);
  }
  for (const uint64_t id : ids) Advance(id);
}

}  // namespace pelton
