// Decides what becomes of an actor's children when one of them fails.
#ifndef PELTON_CORE_ACTOR_SUPERVISOR_H_
#define PELTON_CORE_ACTOR_SUPERVISOR_H_

#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/actor/actor_cell.h"

namespace pelton::internal {

// One per actor with children, by its SupervisionSpec. A failed child has ended its incarnation
// (and its own children) before it is judged; siblings that are restarted with it end theirs first;
// then all of them begin anew after the back-off.
// Threads: the turns of the parent. Owns: counts on the children.
class Supervisor : public Family {
 public:
  explicit Supervisor(ActorCell& self) : self_(self), spec_(self.supervision()) {}

  bool empty() const override { return children_.empty(); }
  void Adopt(ActorCell& child) override;
  void StopAll(absl::Time deadline) override;
  void OnDown(ActorCell& child) override;
  void OnSuspended(ActorCell& child, const absl::Status& why) override;
  void OnRestarted(ActorCell& child) override { Settled(child.id()); }

 private:
  // Children to be restarted together, once those awaited have ended their incarnations: in the
  // order of their spawning, each when the one before it has started.
  // A child is a member of one batch at most.
  struct RestartBatch {
    uint64_t number;
    std::set<ActorId> awaited;
    std::set<ActorId> members;  // without those that were told to begin
    absl::Duration backoff;
    bool begins = false;                              // the back-off is over
    std::optional<ActorId> beginning = std::nullopt;  // the one that was told last
  };

  // What a child was to a batch: no member, one whose end it waits for, or one that has ended.
  enum class BatchRole { kNone, kAwaited, kEnded };

  void Judge(ActorCell& child, const absl::Status& why);
  void BeginBatch(ActorCell& failed);
  void Escalate(ActorCell& child, const absl::Status& why);
  bool IsAffected(ActorCell& sibling, ActorCell& failed) const;
  // Takes note of a restart; false if there were too many.
  bool CountRestart();
  absl::Duration NextBackoff() const;
  // Takes `child` off the list of those awaited; true if a batch waited for it.
  bool Arrived(ActorId child);
  // Takes `child` out of the batch it is in.
  BatchRole Leave(ActorId child);
  void StartIfComplete(RestartBatch& batch);
  // The back-off of the batch is over.
  void Restart(uint64_t number);
  // Has the next member of `batch` begin; the batch is over when there is none.
  void RestartNext(std::list<RestartBatch>::iterator batch);
  // `child` has started, failed or ended: who waited for it goes on.
  void Settled(ActorId child);

  ActorCell& self_;
  const SupervisionSpec spec_;
  std::map<ActorId, RefPtr<ActorCell>> children_;  // ids grow: in the order of their spawning
  std::deque<absl::Time> restarts_;                // within the period
  std::list<RestartBatch> batches_;
  uint64_t last_batch_ = 0;
};

// The supervisor of `self`, made when it spawns its first child.
Family& FamilyOf(ActorCell& self);

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_SUPERVISOR_H_
