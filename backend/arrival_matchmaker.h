// Peers among the ranks that are there now, by questions to the control plane.
#ifndef PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_
#define PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/matchmaker.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"
#include "core/actor/thread_executor.h"
#include "core/base/ids.h"
#include "core/base/standstill.h"

namespace pelton {

struct MatchOptions {
  FindPeerRequest question;  // without its round
  Rank self;                 // one of its members; the answers are places among them
  absl::Duration timeout;    // of a round's question
  // Of one call; more than the coordinator leaves a rank waiting.
  absl::Duration call_timeout = kMostPeerPatience + absl::Seconds(1);
  const Standstill* standstill = nullptr;  // for how long the timeout stands still; null: never
  std::function<void()> wake;              // called after each answer, on the thread that asks
};

// Who is there to exchange with in `round`.
struct MatchQuestion {
  Round round;
  Promise<Rank> reply;
};

// Asks the coordinator, which waits for peers: for an executor of its own. A call whose answer is
// lost is repeated: the coordinator has the same decision for it.
// Threads: as every actor; a turn waits for the answer. Owns: the options; borrows the control.
class MatchAsker final : public Actor {
 public:
  MatchAsker(Control* control, MatchOptions options)
      : control_(*control), options_(std::move(options)) {}

  // Errors of the answer: name rank, round and time.
  void Handle(MatchQuestion question);

 private:
  absl::StatusOr<Rank> Find(const MatchQuestion& question);
  absl::Duration Stood(absl::Time now) const;

  Control& control_;
  const MatchOptions options_;
};

// The asker on a thread of its own, so that the rounds' scheduler goes on meanwhile.
// Threads: one at a time. Owns: the thread, and the answer.
class ArrivalMatchmaker final : public Matchmaker {
 public:
  // The asker is a child of `parent`, where that is somebody.
  ArrivalMatchmaker(const ActorRef<Actor>& parent, Control& control, MatchOptions options);
  // Blocks: until the call under way is answered, at most its timeout.
  ~ArrivalMatchmaker() override = default;

  void Ask(Round round) override;
  absl::StatusOr<std::optional<Rank>> Answer() override;

 private:
  ThreadExecutor thread_;
  const ActorRef<MatchAsker> asker_;
  Future<Rank> asked_;  // for the round asked for last; dropping it takes the question back
  std::optional<absl::StatusOr<Rank>> answer_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_
