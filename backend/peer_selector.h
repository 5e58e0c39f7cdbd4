// A rank's peers in one group, chosen by the control plane: from matchings that are fetched ahead
// of their use, or among the ranks that look for a peer at the same moment.
#ifndef PELTON_BACKEND_PEER_SELECTOR_H_
#define PELTON_BACKEND_PEER_SELECTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/peer_source.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"
#include "core/actor/thread_executor.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// Who exchanges with whom in `step`: this rank's peer.
struct PeerQuestion {
  uint64_t step;
  Promise<Rank> reply;
};

// Asks the coordinator, which takes a round trip: for an executor of its own.
// Threads: as every actor; a turn waits for the answer. Owns: the question; borrows the control.
class PeerAsker final : public Actor {
 public:
  // Of one question.
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(2);

  // `question` without its step; `self` is one of its members, and the ranks of the answers are
  // places among them.
  PeerAsker(Control* control, SelectPeersRequest question, Rank self);

  // Errors of the answer: the call's; Internal: what came is no matching of the members.
  void Handle(PeerQuestion question);

 private:
  Control& control_;
  SelectPeersRequest question_;
  const size_t place_;
};

// The asker on a thread of its own, so that no round waits for it. An answer that does not come, or
// makes no sense, counts as missing at this rank, and the code that uses the source falls back. The
// first error that an answer is goes to the log.
// Threads: one at a time. Owns: the thread, and the answers.
class PeerSelector final : public PeerSource {
 public:
  // The asker is a child of `parent`, where that is somebody; else as PeerAsker.
  PeerSelector(const ActorRef<Actor>& parent, Control& control, SelectPeersRequest question,
               Rank self);
  // Blocks: at most PeerAsker::kAnswerTimeout.
  ~PeerSelector() override = default;

  std::optional<Rank> PeerAt(uint64_t step) override;
  void Prefetch(uint64_t step) override;

 private:
  struct Answer {
    Future<Rank> asked;  // dropping it takes the question back
    std::optional<Rank> peer;
    bool is_awaited() const { return asked.valid() && !asked.ready(); }
  };

  const Rank self_;
  ThreadExecutor thread_;
  const ActorRef<PeerAsker> asker_;
  std::map<uint64_t, Answer> answers_;  // by step
  bool has_told_ = false;               // of an error
};

// Peers among the ranks that are there now, by questions to the control plane.

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

#endif  // PELTON_BACKEND_PEER_SELECTOR_H_
