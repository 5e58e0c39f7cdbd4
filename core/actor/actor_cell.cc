#include "core/actor/actor_cell.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "absl/strings/str_cat.h"
#include "core/actor/promise.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace pelton::internal {
namespace {

ActorId NextId() {
  static std::atomic<uint64_t> last{0};
  return ActorId(last.fetch_add(1, std::memory_order_relaxed) + 1);
}

std::string Demangle(const char* mangled) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : mangled;
}

absl::Status StatusOfCurrentException() {
  try {
    throw;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("exception in a turn: ", error.what()));
  } catch (...) {
    return absl::InternalError("exception of unknown type in a turn");
  }
}

}  // namespace

ActorCell::ActorCell(Executor& executor, const ActorType& type, RefPtr<ActorCell> parent,
                     SpawnOptions options)
    : mailbox_(static_cast<int32_t>(options.mailbox_capacity)),
      executor_(executor),
      type_(type),
      id_(NextId()),
      parent_(std::move(parent)),
      on_failure_(options.on_failure),
      ends_with_parent_(options.ends_with_parent),
      has_name_(!options.name.empty()) {
  PELTON_CHECK(options.mailbox_capacity > 0) << "a mailbox needs room for one message";
  PELTON_CHECK(options.mailbox_capacity < (size_t{1} << 28)) << "a mailbox that large is no bound";
  PELTON_CHECK(ends_with_parent_ || !restarts()) << "a restart is for its owner, who ends it";
  if (has_name_) kin().name = std::move(options.name);
  if (options.on_end) kin().on_end = std::move(options.on_end);
  static const SupervisionSpec kDefault;
  if (options.supervision != kDefault) kin().supervision = options.supervision;
}

ActorCell::~ActorCell() = default;

ActorCell::Kin& ActorCell::kin() {
  if (kin_ == nullptr) kin_ = std::make_unique<Kin>();
  return *kin_;
}

std::string ActorCell::Describe() const {
  return absl::StrCat("actor ", id_.value(), " (", Demangle(type_.type->name()), ")");
}

std::string ActorCell::given_name() const { return has_name_ ? kin_->name : ""; }

std::string ActorCell::Name() const { return has_name_ ? kin_->name : Describe(); }

absl::Status ActorCell::DeadError() const {
  // What is written before the mailbox closes stays.
  if (alive() || kin_ == nullptr || kin_->why.ok()) {
    return absl::NotFoundError(absl::StrCat(Describe(), " has ended"));
  }
  return absl::NotFoundError(absl::StrCat(Name(), " has ended: ", kin_->why.message()));
}

absl::Status ActorCell::WhyNoRoom() const {
  if (mailbox_.closed()) return DeadError();
  if (mailbox_.refusing()) return absl::NotFoundError(absl::StrCat(Describe(), " is stopping"));
  return absl::ResourceExhaustedError(
      absl::StrCat("mailbox of ", Describe(), " is full: ", mailbox_.capacity(), " messages"));
}

void ActorCell::ReturnRoom(int32_t count) {
  // A turn in which DieIfDrained looks again, or those that wait for room are served.
  if (mailbox_.ReturnRoom(count) || mailbox_.refusing()) {
    Post(NewSystemCall([](ActorCell&) {}));
  }
}

void ActorCell::AwaitRoom(std::unique_ptr<RoomWaiter> waiter) {
  struct Enlist {
    std::unique_ptr<RoomWaiter> waiter;
    RefPtr<ActorCell> cell;
    // The end of this turn serves it.
    void operator()(ActorCell& self) { self.kin().room_waiters.push_back(std::move(waiter)); }
    void OnDead() { waiter->Refuse(cell->DeadError()); }
  };
  Post(NewSystemCall(Enlist{std::move(waiter), RefPtr<ActorCell>::Share(this)}));
}

void ActorCell::ServeRoomWaiters() {
  std::deque<std::unique_ptr<RoomWaiter>>& waiters = kin_->room_waiters;
  mailbox_.SetRoomWanted(true);
  while (!waiters.empty() && waiters.front()->Serve(*this)) waiters.pop_front();
  if (waiters.empty()) mailbox_.SetRoomWanted(false);
}

void ActorCell::RequestStop(absl::Time deadline, StopMode mode) {
  Post(NewSystemCall([deadline, mode](ActorCell& self) {
    if (self.on_failure_ != OnFailure::kAlwaysRestart) return self.BeginStop(deadline, mode);
    self.Fail(absl::CancelledError("it was stopped"));
  }));
}

void ActorCell::RequestEnd(absl::Time deadline) {
  Post(NewSystemCall([deadline](ActorCell& self) { self.BeginStop(deadline); }));
}

void ActorCell::Start(std::unique_ptr<Actor> actor) {
  actor_ = std::move(actor);
  actor_->cell_ = this;
}

void ActorCell::SetFactory(ActorFactory factory) {
  kin().factory = std::move(factory);
  restartable_ = true;
}

TurnOutcome ActorCell::Turn(int quota) {
  const uint32_t turns = turns_.load(std::memory_order_relaxed);
  turns_.store(turns + 1, std::memory_order_relaxed);
  // Reading the clock costs as much as a short turn.
  constexpr uint32_t kTurnsPerMeasure = 64;
  const bool is_measured = turns / 2 % kTurnsPerMeasure == 0;
  const absl::Time began = is_measured ? executor_.clock().Now() : absl::Time();
  const DroppedPromises dropped;
  const TurnOutcome outcome = RunTurn(quota);
  if (is_measured) {
    const int64_t us = absl::ToInt64Microseconds(executor_.clock().Now() - began);
    if (us > longest_turn_us_.load(std::memory_order_relaxed)) {
      longest_turn_us_.store(static_cast<uint32_t>(std::min<int64_t>(us, UINT32_MAX)),
                             std::memory_order_relaxed);
    }
  }
  turns_.store(turns + 2, std::memory_order_relaxed);
  return outcome;
}

TurnOutcome ActorCell::RunTurn(int quota) {
  TurnOutcome outcome;
  if (phase_ == Phase::kStarting) StartIncarnation();
  const Handled handled = HandleMessages(quota);
  if (handled.room > 0) mailbox_.ReturnRoom(handled.room);
  if (kin_ != nullptr && !kin_->room_waiters.empty()) ServeRoomWaiters();
  outcome.moved = handled.messages > handled.system;
  if (type_.polls && HandlesUserMessages()) PollOnce(outcome);
  if (phase_ == Phase::kDraining) DieIfDrained(outcome.poll);
  outcome.dead = phase_ == Phase::kDead;
  outcome.more = !system_.empty() || (!user_.empty() && HandlesUserMessages());
  return outcome;
}

MessageNode* ActorCell::NextMessage() {
  if (MessageNode* node = system_.Pop(); node != nullptr) return node;
  return HandlesUserMessages() ? user_.Pop() : nullptr;
}

ActorCell::Handled ActorCell::HandleMessages(int quota) {
  Handled handled;
  while (phase_ != Phase::kDead && handled.messages < quota) {
    MessageNode* node = NextMessage();
    if (node == nullptr) {
      if (!mailbox_.Drain(system_, user_)) break;
      continue;
    }
    ++handled.messages;
    const MessageClass message_class = node->kind->message_class;
    if (message_class == MessageClass::kUser) ++handled.room;
    if (message_class == MessageClass::kSystem) ++handled.system;
    if (dropping_ && message_class != MessageClass::kSystem) {
      node->kind->discard(node);
      continue;
    }
    try {
      absl::Status status = node->kind->handle(*this, node);
      if (!status.ok()) Fail(std::move(status));
    } catch (...) {
      Fail(StatusOfCurrentException());
    }
  }
  return handled;
}

void ActorCell::PollOnce(TurnOutcome& outcome) {
  auto& actor = static_cast<PollingActor&>(*actor_);
  try {
    outcome.poll = actor.Poll();
    outcome.moved |= outcome.poll == PollResult::kMoved;
    if (outcome.poll == PollResult::kIdle) outcome.max_park = actor.MaxPark();
  } catch (...) {
    Fail(StatusOfCurrentException());
  }
}

void ActorCell::StartIncarnation() {
  phase_ = Phase::kRunning;
  try {
    absl::Status status = actor_->OnStart();
    if (!status.ok()) Fail(std::move(status));
  } catch (...) {
    Fail(StatusOfCurrentException());
  }
}

void ActorCell::EndIncarnation(const absl::Status& why) {
  if (actor_ == nullptr) return;
  try {
    actor_->OnStop(why);
  } catch (...) {
    // It ends in any case; its first reason is the one to report.
  }
  // After OnStop, so that what it asks for is dropped too.
  incarnation_.fetch_add(1, std::memory_order_relaxed);
  actor_.reset();
  ExplainDropped(why);
}

void ActorCell::ExplainDropped(const absl::Status& why) const {
  DroppedPromises* const dropped = DroppedPromises::Current();
  // In no turn, as where an executor is destroyed, they have been answered.
  if (dropped == nullptr || dropped->empty()) return;
  dropped->Answer(why.ok() ? absl::StrCat(Name(), " has ended")
                           : absl::StrCat(Name(), ": ", why.message()));
}

void ActorCell::Fail(absl::Status why) {
  if (!HandlesUserMessages()) return;
  EnterFailing(std::move(why));
}

void ActorCell::Suspend() {
  // One that was told to end does so; its parent goes on when it is down.
  if (!HandlesUserMessages() || stopping_) return;
  EnterFailing(absl::CancelledError("restarted together with a sibling that failed"));
}

void ActorCell::EnterFailing(absl::Status why) {
  kin().why = std::move(why);
  absl::Time deadline = executor_.clock().Now() + limits::kStopTimeout;
  if (stopping_) deadline = std::min(deadline, kin().stop_deadline);
  WaitForChildren(deadline, Phase::kFailing);
}

void ActorCell::BeginStop(absl::Time deadline, StopMode mode) {
  dropping_ |= mode == StopMode::kDrop;
  switch (phase_) {
    case Phase::kDead:
      return;
    case Phase::kStopping:
    case Phase::kDraining:
      if (deadline >= kin().stop_deadline) return;
      if (!family_empty()) family()->StopAll(deadline);
      return SetStopTimer(deadline);
    case Phase::kFailing:
    case Phase::kSuspended: {
      const absl::Status why = kin().why;
      return Die(why);
    }
    case Phase::kStarting:
    case Phase::kRunning:
      stopping_ = true;
      return WaitForChildren(deadline, Phase::kStopping);
  }
}

void ActorCell::WaitForChildren(absl::Time deadline, Phase phase) {
  phase_ = phase;
  const bool childless = family_empty();
  if (!childless) family()->StopAll(deadline);
  if (!childless || phase == Phase::kStopping) SetStopTimer(deadline);
  if (childless) OnChildrenGone();
}

void ActorCell::SetStopTimer(absl::Time deadline) {
  kin().stop_deadline = deadline;
  kin().stop_timer.Cancel();
  kin().stop_timer = executor_.SetTimer(
      deadline, *this, NewSystemCall([](ActorCell& self) { self.OnStopDeadline(); }));
}

void ActorCell::OnStopDeadline() {
  if (phase_ == Phase::kStopping || phase_ == Phase::kDraining) {
    Die(absl::DeadlineExceededError("stopped by force: its time for an orderly stop was up"));
  } else if (phase_ == Phase::kFailing) {
    OnChildrenGone();
  }
}

void ActorCell::OnChildDown(ActorCell& child) {
  Family* children = family();
  if (children == nullptr) return;
  children->OnDown(child);
  if (children->empty()) OnChildrenGone();
}

void ActorCell::OnChildrenGone() {
  if (phase_ == Phase::kStopping) {
    phase_ = Phase::kDraining;
    mailbox_.RefuseReservations();
  } else if (phase_ == Phase::kFailing) {
    kin().stop_timer.Cancel();
    const absl::Status why = kin().why;
    EndIncarnation(why);
    phase_ = Phase::kSuspended;
    if (!parent_ || stopping_ || on_failure_ == OnFailure::kIgnore) return Die(why);
    ReportToParent(why);
  }
}

void ActorCell::ReportToParent(const absl::Status& why) {
  // If the parent is dead, nobody will give a verdict.
  struct Report {
    RefPtr<ActorCell> child;
    absl::Status why;
    void operator()(ActorCell& parent) { parent.family()->OnSuspended(*child, why); }
    void OnDead() { child->RequestEnd(absl::InfinitePast()); }
  };
  parent_->Post(NewSystemCall(Report{RefPtr<ActorCell>::Share(this), why}));
}

void ActorCell::Restart() {
  if (phase_ != Phase::kSuspended) return;
  PELTON_CHECK(restartable_) << "restart of an actor without a factory";
  try {
    Start(kin().factory());
  } catch (...) {
    // Another failure, which the parent counts like the one before.
    kin().why = StatusOfCurrentException();
    return ReportToParent(kin().why);
  }
  while (MessageNode* node = kin().kept.Pop()) system_.Append(node);
  StartIncarnation();
  if (phase_ != Phase::kRunning) return;
  struct Report {
    RefPtr<ActorCell> child;
    void operator()(ActorCell& parent) { parent.family()->OnRestarted(*child); }
  };
  parent_->Post(NewSystemCall(Report{RefPtr<ActorCell>::Share(this)}));
}

void ActorCell::DieIfDrained(PollResult poll) {
  if (!system_.empty() || !user_.empty() || mailbox_.HasNews()) return;
  if (poll != PollResult::kNothingToDo) return;
  if (!dropping_ && !mailbox_.AllRoomReturned()) return;
  if (!family_empty()) return;
  Die(absl::OkStatus());
}

void ActorCell::Die(const absl::Status& why) {
  if (phase_ == Phase::kDead) return;
  if (phase_ == Phase::kStarting) actor_.reset();  // it never began: there is nothing to stop
  phase_ = Phase::kDead;
  if (Family* children = family(); children != nullptr) children->StopAll(absl::InfinitePast());
  if (!why.ok() || kin_ != nullptr) kin().why = why;
  EndIncarnation(why);
  mailbox_.RefuseReservations();
  mailbox_.Close(system_, user_);
  system_.DiscardAll();
  user_.DiscardAll();
  ExplainDropped(why);
  TellWatchers(why);
  if (kin_ != nullptr) {
    kin_->kept.DiscardAll();
    kin_->stop_timer.Cancel();
    for (const auto& waiter : std::exchange(kin_->room_waiters, {})) waiter->Refuse(DeadError());
    if (kin_->on_end) std::move(kin_->on_end)(why);
    kin_->factory = nullptr;
    // Children that outlive it (it was ended by force) hold a count on it, and it holds none on
    // them.
    kin_->family = nullptr;
  }
  if (parent_) {
    parent_->Post(NewSystemCall([child = RefPtr<ActorCell>::Share(this)](ActorCell& parent) {
      parent.OnChildDown(*child);
    }));
  }
  executor_.OnDeath(*this);
}

void ActorCell::AddWatcher(std::unique_ptr<Watcher> watcher) {
  std::vector<std::unique_ptr<Watcher>>& watchers = kin().watchers;
  watchers.push_back(std::move(watcher));
  // A long-lived actor is watched by many that end before it: their number bounds the list.
  if (watchers.size() < kin().next_pruning) return;
  std::erase_if(watchers, [](const std::unique_ptr<Watcher>& each) { return !each->wanted(); });
  kin().next_pruning = std::max(size_t{16}, watchers.size() * 2);
}

void ActorCell::TellWatchers(const absl::Status& why) {
  if (kin_ == nullptr) return;
  for (const std::unique_ptr<Watcher>& watcher : std::exchange(kin_->watchers, {})) {
    watcher->Tell(Down{id_, Name(), why});
  }
}

}  // namespace pelton::internal
