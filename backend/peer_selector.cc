#include "backend/peer_selector.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/topology/matching.h"
#include "core/actor/spawn.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

// A rank whose questions are answered slowly asks for the latest step, not for all it has missed.
constexpr ptrdiff_t kMostWanted = 2;

size_t PlaceOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

// The peer that `matching` gives to the rank at `place` of `count`.
absl::StatusOr<Rank> PeerIn(const Matching& matching, size_t count, size_t place) {
  const absl::Status nonsense = absl::InternalError("the coordinator's answer is no matching");
  if (matching.size() != count) return nonsense;
  const int32_t peer = matching[place];
  if (peer < 0 || static_cast<size_t>(peer) >= count) return nonsense;
  if (matching[static_cast<size_t>(peer)] != static_cast<int32_t>(place)) return nonsense;
  return Rank(peer);
}

}  // namespace

PeerAsker::PeerAsker(Control* control, SelectPeersRequest question, Rank self)
    : control_(*control),
      question_(std::move(question)),
      place_(PlaceOf(question_.members, self)) {}

void PeerAsker::Handle(PeerQuestion question) {
  if (question.reply.cancelled()) return;
  question_.step = question.step;
  const absl::StatusOr<Matching> matching =
      control_.SelectPeers(question_, Clock::Real().Now() + kAnswerTimeout);
  question.reply.Set(matching.ok() ? PeerIn(*matching, question_.members.size(), place_)
                                   : matching.status());
}

PeerSelector::PeerSelector(const ActorRef<Actor>& parent, Control& control,
                           SelectPeersRequest question, Rank self)
    : thread_({.name = "pelton-peers"}),
      asker_(SpawnUnder<PeerAsker>(
          parent,
          {.name = "peer selector", .executor = &thread_, .on_failure = OnFailure::kRestart},
          &control, std::move(question), self)) {}

std::optional<Rank> PeerSelector::PeerAt(uint64_t step) {
  answers_.erase(answers_.begin(), answers_.lower_bound(step));
  const auto found = answers_.find(step);
  if (found == answers_.end()) return std::nullopt;
  Answer& answer = found->second;
  if (answer.asked.valid() && answer.asked.ready()) {
    const absl::StatusOr<Rank> peer = std::move(answer.asked).Take();
    if (peer.ok()) answer.peer = *peer;
  }
  return answer.peer;
}

void PeerSelector::Prefetch(uint64_t step) {
  if (answers_.contains(step)) return;  // for another bucket of the round
  answers_[step].asked = asker_.Ask(PeerQuestion{step, {}}, absl::InfiniteFuture());
  auto wanted = std::count_if(answers_.begin(), answers_.end(),
                              [](const auto& each) { return each.second.is_awaited(); });
  for (auto each = answers_.begin(); wanted > kMostWanted; ++each) {
    if (!each->second.is_awaited()) continue;
    each->second.asked = {};
    --wanted;
  }
}

}  // namespace pelton
