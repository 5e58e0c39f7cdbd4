// The control plane's matchings for the ranks of one group, fetched ahead of their use.
#ifndef PELTON_BACKEND_PEER_SELECTOR_H_
#define PELTON_BACKEND_PEER_SELECTOR_H_

#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/peer_source.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"
#include "core/actor/thread_executor.h"
#include "core/base/ids.h"

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
// makes no sense, is one that this rank lacks: who uses the source falls back.
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

  ThreadExecutor thread_;
  const ActorRef<PeerAsker> asker_;
  std::map<uint64_t, Answer> answers_;  // by step
};

}  // namespace pelton

#endif  // PELTON_BACKEND_PEER_SELECTOR_H_
