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
  rounds_.clear();
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
  BeginRound(child);
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

void Supervisor::BeginRound(ActorCell& failed) {
  Round& round = rounds_.emplace_back(
      Round{.number = ++last_round_, .awaited = {}, .members = {}, .backoff = NextBackoff()});
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) {
    ActorCell& sibling = *it->second;
    if (sibling.id() == failed.id() || !IsAffected(sibling, failed)) continue;
    // One that is ending for another round joins this one: it must begin after `failed` has ended.
    const Membership former = Leave(sibling.id());
    round.members.insert(sibling.id());
    if (former == Membership::kEnded) continue;
    round.awaited.insert(sibling.id());
    if (former == Membership::kNone) {
      sibling.Post(NewSystemCall([](ActorCell& cell) { cell.Suspend(); }));
    }
  }
  round.members.insert(failed.id());
  StartIfComplete(round);
}

Supervisor::Membership Supervisor::Leave(ActorId child) {
  for (Round& round : rounds_) {
    if (round.members.erase(child) == 0) continue;
    if (round.awaited.erase(child) == 0) return Membership::kEnded;
    StartIfComplete(round);
    return Membership::kAwaited;
  }
  return Membership::kNone;
}

bool Supervisor::Arrived(ActorId child) {
  for (Round& round : rounds_) {
    if (round.awaited.erase(child) == 0) continue;
    StartIfComplete(round);
    return true;
  }
  return false;
}

void Supervisor::StartIfComplete(Round& round) {
  if (!round.awaited.empty()) return;
  struct Begin {
    uint64_t round;
    void operator()(ActorCell& self) { static_cast<Supervisor&>(*self.family()).Restart(round); }
  };
  const absl::Time when = self_.executor().clock().Now() + round.backoff;
  self_.executor().SetTimer(when, self_, NewSystemCall(Begin{round.number}));
}

void Supervisor::Restart(uint64_t number) {
  const auto round = std::find_if(rounds_.begin(), rounds_.end(),
                                  [=](const Round& each) { return each.number == number; });
  if (round == rounds_.end() || std::exchange(round->begins, true)) return;
  RestartNext(round);
}

void Supervisor::RestartNext(std::list<Round>::iterator round) {
  while (!round->members.empty()) {
    const ActorId next = round->members.extract(round->members.begin()).value();
    const auto child = children_.find(next);
    if (child == children_.end()) continue;
    // From here on it is no member: should another round need it, it is suspended again.
    round->beginning = next;
    return child->second->Post(NewSystemCall([](ActorCell& cell) { cell.Restart(); }));
  }
  rounds_.erase(round);
}

void Supervisor::Settled(ActorId child) {
  const auto round = std::find_if(rounds_.begin(), rounds_.end(),
                                  [=](const Round& each) { return each.beginning == child; });
  if (round == rounds_.end()) return;
  round->beginning.reset();
  RestartNext(round);
}

}  // namespace pelton::internal
