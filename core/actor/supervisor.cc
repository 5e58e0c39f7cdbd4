#include "core/actor/supervisor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::internal {

Family& FamilyOf(ActorCell& self) {
  if (self.family() == nullptr) self.set_family(std::make_unique<Supervisor>(self));
  return *self.family();
}

void Supervisor::Adopt(ActorCell& child) {
  children_.emplace(child.id(), RefPtr<ActorCell>::Share(&child));
  // StopAll is over: nobody else would stop it.
  if (self_.ending()) child.RequestStop(absl::InfinitePast());
}

void Supervisor::StopAll(absl::Time deadline) {
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) {
    it->second->RequestStop(deadline);
  }
}

void Supervisor::OnDown(ActorCell& child) {
  children_.erase(child.id());
  Arrived(child.id());
}

void Supervisor::OnSuspended(ActorCell& child, const absl::Status& why) {
  if (self_.ending()) return child.RequestStop(absl::InfinitePast());
  if (Arrived(child.id())) return;
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
  child.RequestStop(absl::InfinitePast());
  self_.Fail(Annotate(why, absl::StrCat("child ", child.Describe(), " failed")));
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
  if (!sibling.restartable() || sibling.on_failure() != OnFailure::kRestart) return false;
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
  Round round{.awaited = {}, .members = {failed.id()}, .backoff = NextBackoff()};
  for (auto it = children_.rbegin(); it != children_.rend(); ++it) {
    ActorCell& sibling = *it->second;
    if (sibling.id() == failed.id() || !IsAffected(sibling, failed)) continue;
    const auto has = [&](const Round& other) { return other.members.contains(sibling.id()); };
    if (std::any_of(rounds_.begin(), rounds_.end(), has)) continue;  // it is ending already
    round.awaited.insert(sibling.id());
    round.members.insert(sibling.id());
    sibling.Post(NewSystemCall([](ActorCell& cell) { cell.Suspend(); }));
  }
  rounds_.push_back(std::move(round));
  StartIfComplete(std::prev(rounds_.end()));
}

bool Supervisor::Arrived(ActorId child) {
  for (auto round = rounds_.begin(); round != rounds_.end(); ++round) {
    if (round->awaited.erase(child) == 0) continue;
    StartIfComplete(round);
    return true;
  }
  return false;
}

void Supervisor::StartIfComplete(std::list<Round>::iterator round) {
  if (!round->awaited.empty()) return;
  struct Begin {
    Round round;
    uint32_t incarnation;
    void operator()(ActorCell& self) {
      // An older incarnation's children have all been stopped with it.
      if (incarnation != self.incarnation() || self.ending()) return;
      static_cast<Supervisor&>(*self.family()).Restart(round.members);
    }
  };
  const absl::Time when = self_.executor().clock().Now() + round->backoff;
  self_.executor().SetTimer(when, self_,
                            NewSystemCall(Begin{std::move(*round), self_.incarnation()}));
  rounds_.erase(round);
}

void Supervisor::Restart(const std::set<ActorId>& members) {
  for (ActorId id : members) {
    const auto child = children_.find(id);
    if (child == children_.end()) continue;
    child->second->Post(NewSystemCall([](ActorCell& cell) { cell.Restart(); }));
  }
}

}  // namespace pelton::internal
