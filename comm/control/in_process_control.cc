#include "comm/control/in_process_control.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "comm/control/coordinator_state.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/inbox.h"
#include "core/base/status.h"
#include "core/base/sync.h"

namespace pelton {
namespace {

// Shared by a Control and the threads that are about to deliver to it, which may outlast it.
using SharedInbox = std::shared_ptr<Inbox<Order>>;

// Threads: any. Owns: the state machine and the replies that nobody has taken yet.
class Coordinator final : public InProcessCoordinator {
 public:
  explicit Coordinator(const Clock& clock) : clock_(clock) {}

  std::unique_ptr<Control> MakeControl() override;
  std::vector<std::unique_ptr<Control>> MakeWorld(const std::string& job,
                                                  WorldSize world_size) override;
  void Lose(const std::string& job, Rank rank) override;
  void Tick() override {
    (void)Apply([](CoordinatorState&, Outbox*) { return absl::OkStatus(); });
  }
  size_t rank_count() override {
    MutexLock lock(&mutex_);
    return state_.rank_count();
  }

  // Feeds an event and carries out its effects; returns what `feed` returns.
  template <typename Feed>
  absl::Status Apply(Feed feed);
  // Feeds a call and waits for its reply.
  template <typename Feed>
  Reply Await(absl::Time deadline, Feed feed);
  absl::Status Attach(const Caller& caller, const SharedInbox& inbox);
  void Detach(const Caller& caller);

  const Clock& clock() const { return clock_; }

 private:
  // Moves effects to where their receivers find them; returns the inboxes to be delivered from,
  // which must happen without the lock.
  std::vector<SharedInbox> Dispatch(Outbox outbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Outbox TickLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  CondVar replied_;
  CoordinatorState state_ ABSL_GUARDED_BY(mutex_){absl::InfiniteDuration()};
  uint64_t last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Reply> replies_ ABSL_GUARDED_BY(mutex_);
  std::map<Caller, SharedInbox> inboxes_ ABSL_GUARDED_BY(mutex_);
};

// Threads: as Control. Owns: its inbox; borrows the coordinator.
class InProcessControl final : public Control {
 public:
  explicit InProcessControl(Coordinator* coordinator) : coordinator_(*coordinator) {}
  ~InProcessControl() override;

  absl::StatusOr<Membership> Join(const JoinRequest& request, absl::Time deadline) override;
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time deadline) override;
  void SetRound(Round round) override;
  absl::Status Report(const absl::Status& reason, absl::Time deadline) override;
  absl::Status Leave(absl::Time deadline) override;
  void OnOrder(OrderCallback callback) override { inbox_->SetCallback(std::move(callback)); }

  // Takes part as `caller` from now on.
  absl::Status Enter(Caller caller);

 private:
  absl::StatusOr<Caller> Self();
  absl::Status Named(const absl::Status& status);

  Coordinator& coordinator_;
  const SharedInbox inbox_ = std::make_shared<Inbox<Order>>();
  Mutex mutex_;
  std::optional<Caller> self_ ABSL_GUARDED_BY(mutex_);
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
};

template <typename Feed>
absl::Status Coordinator::Apply(Feed feed) {
  absl::Status status;
  std::vector<SharedInbox> inboxes;
  {
    MutexLock lock(&mutex_);
    inboxes = Dispatch(TickLocked());
    Outbox outbox;
    status = feed(state_, &outbox);
    for (SharedInbox& inbox : Dispatch(std::move(outbox))) inboxes.push_back(std::move(inbox));
  }
  for (const SharedInbox& inbox : inboxes) inbox->Deliver();
  return status;
}

template <typename Feed>
Reply Coordinator::Await(absl::Time deadline, Feed feed) {
  uint64_t id;
  (void)Apply([&](CoordinatorState& state, Outbox* outbox) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    id = ++last_call_;
    feed(state, Call{id, clock_.Now(), deadline}, outbox);
    return absl::OkStatus();
  });
  while (true) {
    {
      MutexLock lock(&mutex_);
      // Virtual time may stand still for long. The test that moves it calls Tick, which wakes this
      // thread.
      const absl::Duration left = std::min(deadline, state_.NextDeadline()) - clock_.Now();
      if (!replies_.contains(id)) replied_.WaitWithDeadline(&mutex_, Clock::Real().Now() + left);
      if (const auto found = replies_.find(id); found != replies_.end()) {
        Reply reply = std::move(found->second);
        replies_.erase(found);
        return reply;
      }
    }
    Tick();
  }
}

Outbox Coordinator::TickLocked() {
  Outbox outbox;
  state_.Tick(clock_.Now(), &outbox);
  return outbox;
}

std::vector<SharedInbox> Coordinator::Dispatch(Outbox outbox) {
  std::vector<SharedInbox> touched;
  for (Reply& reply : outbox.replies) {
    const uint64_t id = reply.call;
    replies_.emplace(id, std::move(reply));
  }
  if (!outbox.replies.empty()) replied_.SignalAll();
  for (AddressedOrder& addressed : outbox.orders) {
    const auto found = inboxes_.find(addressed.to);
    if (found == inboxes_.end()) continue;
    found->second->Push(std::move(addressed.order));
    touched.push_back(found->second);
  }
  for (const EndedStream& ended : outbox.ended_streams) {
    const auto found = inboxes_.find(ended.rank);
    if (found == inboxes_.end()) continue;
    if (!ended.status.ok()) {
      found->second->Push({Order::Kind::kAbort, ended.rank.rank, ended.status});
      touched.push_back(found->second);
    }
    inboxes_.erase(found);
  }
  return touched;
}

absl::Status Coordinator::Attach(const Caller& caller, const SharedInbox& inbox) {
  return Apply([&](CoordinatorState& state, Outbox* outbox) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    RETURN_IF_ERROR(state.OpenStream(caller, clock_.Now(), outbox));
    inboxes_[caller] = inbox;
    return absl::OkStatus();
  });
}

void Coordinator::Detach(const Caller& caller) {
  (void)Apply([&](CoordinatorState& state, Outbox* outbox) {
    state.StreamBroke(caller, clock_.Now(), outbox);
    return absl::OkStatus();
  });
}

void Coordinator::Lose(const std::string& job, Rank rank) {
  (void)Apply([&](CoordinatorState& state, Outbox* outbox) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& [caller, inbox] : inboxes_) {
      if (caller.job != job || caller.rank != rank) continue;
      state.StreamBroke(Caller(caller), clock_.Now(), outbox);
      break;
    }
    return absl::OkStatus();
  });
}

std::unique_ptr<Control> Coordinator::MakeControl() {
  return std::make_unique<InProcessControl>(this);
}

std::vector<std::unique_ptr<Control>> Coordinator::MakeWorld(const std::string& job,
                                                             WorldSize world_size) {
  Outbox outbox;
  {
    MutexLock lock(&mutex_);
    for (Rank rank(0); rank.value() < world_size.value(); rank = Rank(rank.value() + 1)) {
      const JoinRequest request{.job = job, .rank = rank, .world_size = world_size, .host = {}};
      state_.Join({++last_call_, clock_.Now(), absl::InfiniteFuture()}, request, &outbox);
    }
  }
  std::vector<std::unique_ptr<Control>> controls;
  for (const Reply& reply : outbox.replies) {
    PELTON_CHECK_OK(reply.status);
    auto control = std::make_unique<InProcessControl>(this);
    const Rank rank(static_cast<int32_t>(controls.size()));
    PELTON_CHECK_OK(control->Enter({job, rank, reply.membership->generation}));
    controls.push_back(std::move(control));
  }
  return controls;
}

InProcessControl::~InProcessControl() {
  std::optional<Caller> lost;
  {
    MutexLock lock(&mutex_);
    if (!left_) lost = self_;
  }
  inbox_->Close();
  if (lost) coordinator_.Detach(*lost);
}

absl::Status InProcessControl::Enter(Caller caller) {
  RETURN_IF_ERROR(coordinator_.Attach(caller, inbox_));
  MutexLock lock(&mutex_);
  self_ = std::move(caller);
  return absl::OkStatus();
}

absl::StatusOr<Caller> InProcessControl::Self() {
  MutexLock lock(&mutex_);
  if (!self_) return absl::FailedPreconditionError("this rank has not joined");
  if (left_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", self_->rank.value(), " has left the job"));
  }
  return *self_;
}

absl::Status InProcessControl::Named(const absl::Status& status) {
  MutexLock lock(&mutex_);
  return self_ ? Annotate(status, absl::StrCat("rank ", self_->rank.value())) : status;
}

absl::StatusOr<Membership> InProcessControl::Join(const JoinRequest& request, absl::Time deadline) {
  if (Self().ok()) return absl::FailedPreconditionError("this rank has already joined");
  const Reply reply =
      coordinator_.Await(deadline, [&](CoordinatorState& state, const Call& call, Outbox* outbox) {
        state.Join(call, request, outbox);
      });
  const std::string who = absl::StrCat("rank ", request.rank.value());
  if (!reply.status.ok()) return Annotate(reply.status, who);
  const Caller self{request.job, request.rank, reply.membership->generation};
  if (absl::Status status = Enter(self); !status.ok()) return Annotate(status, who);
  return *reply.membership;
}

absl::StatusOr<ControlAnswer> InProcessControl::Ask(ControlQuestion question, absl::Time deadline) {
  ASSIGN_OR_RETURN(const Caller self, Self());
  Reply reply =
      coordinator_.Await(deadline, [&](CoordinatorState& state, const Call& call, Outbox* outbox) {
        state.Ask(call, self, std::move(question), outbox);
      });
  if (!reply.status.ok()) return Named(reply.status);
  return std::move(reply.answer);
}

void InProcessControl::SetRound(Round round) {
  const absl::StatusOr<Caller> self = Self();
  if (!self.ok()) return;
  (void)coordinator_.Apply([&](CoordinatorState& state, Outbox*) {
    return state.Heartbeat(*self, {round}, coordinator_.clock().Now());
  });
}

absl::Status InProcessControl::Report(const absl::Status& reason, absl::Time) {
  ASSIGN_OR_RETURN(const Caller self, Self());
  return Named(coordinator_.Apply(
      [&](CoordinatorState& state, Outbox* outbox) { return state.Report(self, reason, outbox); }));
}

absl::Status InProcessControl::Leave(absl::Time) {
  {
    MutexLock lock(&mutex_);
    if (left_) return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Caller self, Self());
  {
    MutexLock lock(&mutex_);
    left_ = true;
  }
  inbox_->Close();
  return Named(coordinator_.Apply(
      [&](CoordinatorState& state, Outbox* outbox) { return state.Leave(self, outbox); }));
}

}  // namespace

std::unique_ptr<InProcessCoordinator> InProcessCoordinator::Make(const Clock& clock) {
  return std::make_unique<Coordinator>(clock);
}

}  // namespace pelton
