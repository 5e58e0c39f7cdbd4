#include "backend/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/context.h"
#include "core/actor/executor_base.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr int32_t kEnds = 1;  // orders that end the membership, of which the first one counts

// Tells the other ranks of a failure here, then ends.
// Threads: as every actor; its one turn waits for a round trip, which a coordinator that stands
// still makes longer. Owns: nothing.
class Teller final : public Actor {
 public:
  Teller(Control* control, absl::Status reason, absl::Duration patience)
      : control_(*control), reason_(std::move(reason)), patience_(patience) {}

  absl::Status OnStart() override {
    // An error says that the coordinator is lost, which the others are told of in another way.
    (void)control_.Report(reason_, Clock::Real().Now() + patience_);
    context().Stop();
    return absl::OkStatus();
  }

 private:
  Control& control_;
  const absl::Status reason_;
  const absl::Duration patience_;
};

}  // namespace

bool FailureNote::Set(const absl::Status& reason) {
  auto mine = std::make_unique<const absl::Status>(reason);
  const absl::Status* none = nullptr;
  if (!reason_.compare_exchange_strong(none, mine.get())) return false;
  (void)mine.release();
  return true;
}

absl::Status FailureNote::Get() const {
  const absl::Status* const reason = reason_.load();
  return reason == nullptr ? absl::OkStatus() : *reason;
}

void Session::Handle(Order order) {
  if (order.kind == Order::Kind::kPeerLeft && order.culprit.has_value()) {
    (void)context().SendAfter(*this, kGrace, GraceOver{*order.culprit, std::move(order.reason)});
  } else {
    End(order.reason);
  }
}

// Groups without the rank have nothing to do with it, and the job goes on.
void Session::Handle(GraceOver over) {
  const absl::Status& why =
      left_.emplace(over.rank, Annotate(over.reason, options_.here)).first->second;
  for (const auto& [communicator, open] : open_) {
    if (open.group.RankOf(over.rank).has_value()) communicator->Abort(why);
  }
}

void Session::Handle(FailureHere failure) {
  if (options_.telling == nullptr && telling_ == nullptr) {
    telling_ = std::make_unique<ThreadExecutor>(ThreadExecutor::Options{.name = "pelton-tell"});
  }
  SpawnOptions options;
  options.name = "teller";
  options.executor = options_.telling != nullptr ? options_.telling : telling_.get();
  options.on_failure = OnFailure::kIgnore;  // it cannot be told twice
  SpawnChild<Teller>(context(), std::move(options), options_.control, std::move(failure.reason),
                     options_.tell_patience);
}

absl::Status Session::OnStart() {
  if (options_.turn_look_interval > absl::ZeroDuration()) Handle(LookAtTurns{});
  return absl::OkStatus();
}

// The sinks of product processes take a line without waiting for whoever waits for this actor: a
// daemon's writes it, and that of Python leaves it to a thread that waits for Python's lock.
void Session::Handle(LookAtTurns look) {
  for (const std::string& line : turns_.Look(LivingActors(), context().Now())) {
    Log(LogLevel::kWarning, absl::StrCat(options_.here, ": ", line));
  }
  (void)context().SendAfter(*this, options_.turn_look_interval, look);
}

void Session::Handle(MayOpen question) { question.reply.Set(WhyNotWith(question.group)); }

void Session::Handle(Opened opened) {
  Communicator& communicator = *opened.opened.communicator;
  // A region that peers cannot map is read as private memory: slower, never wrong.
  if (opened.opened.kind == DeviceKind::kHost) {
    for (const Region* region : shared_) (void)communicator.Register(*region);
  }
  if (const absl::Status failed = WhyNotWith(opened.opened.group); !failed.ok()) {
    communicator.Abort(failed);
  }
  open_.insert_or_assign(&communicator, std::move(opened.opened));
  opened.reply.Set(absl::OkStatus());
}

void Session::Handle(Closed closed) {
  open_.erase(closed.closed.communicator);
  closed.reply.Set(absl::OkStatus());
}

void Session::Handle(ShareRegion share) {
  shared_.push_back(share.shared.region);
  for (const auto& [communicator, open] : open_) {
    if (open.kind == DeviceKind::kHost) (void)communicator->Register(*share.shared.region);
  }
  share.reply.Set(absl::OkStatus());
}

absl::Status Session::OnChildFailed(const Down& child) {
  const absl::Status reason = Annotate(child.why, child.name);
  const bool is_first = options_.note->Get().ok();
  End(reason);
  if (is_first) Handle(FailureHere{reason});
  return absl::OkStatus();
}

void Session::OnStop(const absl::Status& why) {
  if (!why.ok()) End(why);
}

absl::Status Session::WhyNotWith(const Group& group) const {
  RETURN_IF_ERROR(options_.note->Get());
  for (const auto& [rank, reason] : left_) {
    if (group.RankOf(rank).has_value()) return reason;
  }
  return absl::OkStatus();
}

void Session::End(const absl::Status& reason) {
  if (!options_.note->Set(Annotate(reason, options_.here))) return;
  const absl::Status failure = options_.note->Get();
  if (options_.transport != nullptr) options_.transport->Abort(failure);
  for (const auto& [communicator, open] : open_) communicator->Abort(failure);
}

size_t SessionDoor::MailboxCapacity(WorldSize world_size) {
  constexpr size_t kReports = 1;
  return limits::kMailboxCapacity + static_cast<size_t>(world_size.value() + kEnds) + kReports;
}

SessionDoor::SessionDoor(ActorRef<Session> session, WorldSize world_size)
    : session_(std::move(session)), has_left_(static_cast<size_t>(world_size.value())) {
  // A session that has ended has no room, and needs none.
  if (auto room = session_.Reserve(world_size.value() + kEnds); room.ok()) {
    orders_.emplace(*std::move(room));
  }
  if (auto room = session_.Reserve(); room.ok()) report_.emplace(*std::move(room));
}

// Whether `order` is the first of its kind, for which there is room.
bool SessionDoor::TakeRoom(const Order& order) {
  if (!orders_.has_value()) return false;
  if (order.kind != Order::Kind::kPeerLeft || !order.culprit.has_value()) {
    return !std::exchange(has_ended_, true);
  }
  const auto rank = static_cast<size_t>(order.culprit->value());
  if (rank >= has_left_.size() || has_left_[rank]) return false;
  has_left_[rank] = true;
  return true;
}

// What has no room of its own changes nothing any more: the session has been told, or has ended.
void SessionDoor::Send(const Order& order) {
  (void)(TakeRoom(order) ? orders_->Send(order) : session_.Send(order));
}

void SessionDoor::Report(const absl::Status& reason) {
  const FailureHere failure{reason};
  const bool is_first = !is_reported_.exchange(true) && report_.has_value();
  (void)(is_first ? report_->Send(failure) : session_.Send(failure));
}

void SessionDoor::Close() {
  orders_.reset();
  if (!is_reported_.exchange(true)) report_.reset();
}

}  // namespace pelton
