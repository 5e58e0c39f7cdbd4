#include "core/actor/supervisor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/actor.h"
#include "core/base/status.h"

namespace pelton::internal {

Family& FamilyOf(ActorCell& self) {
  if (self.family() == nullptr) self.set_family(std::make_unique<Supervisor>(self));
  return *self.family();
}

void Supervisor::Adopt(ActorCell& child) {
  if (!child.ends_with_parent()) return;
  children_.emplace(child.id(), RefPtr<ActorCell>::Share(&child));
  // StopAll is over: nobody else would stop it.
  if (self_.ending()) child.RequestEnd(absl::InfinitePast());
}

void Supervisor::StopAll(absl::Time deadline) {
  batches_.clear();
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) {
    it->second->RequestEnd(deadline);
  }
}

void Supervisor::OnDown(ActorCell& child) {
  children_.erase(child.id());
  Arrived(child.id());
  Settled(child.id());
}

void Supervisor::OnSuspended(ActorCell& child, const absl::Status& why) {
  if (self_.ending()) return child.RequestEnd(absl::InfinitePast());
  if (!Arrived(child.id())) Judge(child, why);
  Settled(child.id());
}

void Supervisor::Judge(ActorCell& child, const absl::Status& why) {
  if (child.on_failure() == OnFailure::kEscalate) return Escalate(child, why);
  if (!child.restartable()) {
    return Escalate(child, Annotate(why, "cannot be restarted (its arguments cannot be copied)"));
  }
  if (!CountRestart()) {
    return Escalate(child,
                    Annotate(why, absl::StrCat("restarted ", spec_.max_restarts, " times within ",
                                               absl::FormatDuration(spec_.period), ", and again")));
  }
  BeginBatch(child);
}

void Supervisor::Escalate(ActorCell& child, const absl::Status& why) {
  child.RequestEnd(absl::InfinitePast());
  const absl::Status verdict = self_.actor()->OnChildFailed(Down{child.id(), child.Name(), why});
  if (verdict.ok()) return;
  self_.Fail(Annotate(verdict, absl::StrCat("child ", child.Describe(), " failed")));
}

bool Supervisor::CountRestart() {
  const absl::Time now = self_.executor().clock().Now();
  while (!restarts_.empty() && restarts_.front() <= now - spec_.period) restarts_.pop_front();
  if (static_cast<int>(restarts_.size()) >= spec_.max_restarts) return false;
  restarts_.push_back(now);
  return true;
}

absl::Duration Supervisor::NextBackoff() const {
  const double doublings = static_cast<double>(restarts_.size()) - 1;
  return std::min(spec_.initial_backoff * std::exp2(doublings), spec_.max_backoff);
}

bool Supervisor::IsAffected(ActorCell& sibling, ActorCell& failed) const {
  if (!sibling.restartable() || !sibling.restarts()) return false;
  switch (spec_.strategy) {
    case RestartStrategy::kOneForOne:
      return false;
    case RestartStrategy::kOneForAll:
      return true;
    case RestartStrategy::kRestForOne:
      return sibling.id() > failed.id();
  }
  return false;
}

void Supervisor::BeginBatch(ActorCell& failed) {
  RestartBatch& batch = batches_.emplace_back(RestartBatch{
      .number = ++last_batch_, .awaited = {}, .members = {}, .backoff = NextBackoff()});
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) {
    ActorCell& sibling = *it->second;
    if (sibling.id() == failed.id() || !IsAffected(sibling, failed)) continue;
    // One that is ending for another batch joins this one: it must begin after `failed` has ended.
    const BatchRole former = Leave(sibling.id());
    batch.members.insert(sibling.id());
    if (former == BatchRole::kEnded) continue;
    batch.awaited.insert(sibling.id());
    if (former == BatchRole::kNone) {
      sibling.Post(NewSystemCall([](ActorCell& cell) { cell.Suspend(); }));
    }
  }
  batch.members.insert(failed.id());
  StartIfComplete(batch);
}

Supervisor::BatchRole Supervisor::Leave(ActorId child) {
  for (RestartBatch& batch : batches_) {
    if (batch.members.erase(child) == 0) continue;
    if (batch.awaited.erase(child) == 0) return BatchRole::kEnded;
    StartIfComplete(batch);
    return BatchRole::kAwaited;
  }
  return BatchRole::kNone;
}

bool Supervisor::Arrived(ActorId child) {
  for (RestartBatch& batch : batches_) {
    if (batch.awaited.erase(child) == 0) continue;
    StartIfComplete(batch);
    return true;
  }
  return false;
}

void Supervisor::StartIfComplete(RestartBatch& batch) {
  if (!batch.awaited.empty()) return;
  struct Begin {
    uint64_t batch;
    void operator()(ActorCell& self) { static_cast<Supervisor&>(*self.family()).Restart(batch); }
  };
  const absl::Time when = self_.executor().clock().Now() + batch.backoff;
  self_.executor().SetTimer(when, self_, NewSystemCall(Begin{batch.number}));
}

void Supervisor::Restart(uint64_t number) {
  const auto batch = std::find_if(batches_.begin(), batches_.end(),
                                  [=](const RestartBatch& each) { return each.number == number; });
  if (batch == batches_.end() || std::exchange(batch->begins, true)) return;
  RestartNext(batch);
}

void Supervisor::RestartNext(std::list<RestartBatch>::iterator batch) {
  while (!batch->members.empty()) {
    const ActorId next = batch->members.extract(batch->members.begin()).value();
    const auto child = children_.find(next);
    if (child == children_.end()) continue;
    // From here on it is no member: should another batch need it, it is suspended again.
    batch->beginning = next;
    return child->second->Post(NewSystemCall([](ActorCell& cell) { cell.Restart(); }));
  }
  batches_.erase(batch);
}

void Supervisor::Settled(ActorId child) {
  const auto batch = std::find_if(batches_.begin(), batches_.end(), [=](const RestartBatch& each) {
    return each.beginning == child;
  });
  if (batch == batches_.end()) return;
  batch->beginning.reset();
  RestartNext(batch);
}

}  // namespace pelton::internal
