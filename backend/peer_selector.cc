#include "backend/peer_selector.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/topology/matching.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A rank whose questions are answered slowly asks for the latest step, not for all it has missed.
constexpr ptrdiff_t kMostWanted = 2;

size_t PlaceOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

// The peer that `matching` gives to the rank at `place` of `count`.
absl::StatusOr<Rank> PeerIn(const Matching& matching, size_t count, size_t place) {
  const absl::Status nonsense = absl::InternalError(
      "the coordinator's answer does not pair the ranks of the group; start all ranks and the "
      "coordinator from the same version of Pelton");
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
    : self_(self),
      thread_({.name = "pelton-peers"}),
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
    if (peer.ok()) {
      answer.peer = *peer;
    } else if (!std::exchange(has_told_, true)) {
      Log(LogLevel::kWarning,
          absl::StrCat("rank ", self_.value(), ": the coordinator has chosen no peers for round ",
                       step + 1, ": ", peer.status().message(),
                       "; all ranks follow shift_one in such a round, and only the first is told"));
    }
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

void MatchAsker::Handle(MatchQuestion question) {
  absl::StatusOr<Rank> found = Find(question);
  if (question.reply.cancelled()) return;  // that round was given up
  question.reply.Set(std::move(found));
  options_.wake();
}

absl::Duration MatchAsker::Stood(absl::Time now) const {
  return options_.standstill == nullptr ? absl::ZeroDuration() : options_.standstill->Total(now);
}

absl::StatusOr<Rank> MatchAsker::Find(const MatchQuestion& asked) {
  FindPeerRequest question = options_.question;
  question.round = asked.round.value();
  const absl::Time began = Clock::Real().Now();
  // Of the timeout, but for what has been a standstill since.
  const auto left = [&, stood = Stood(began)](absl::Time now) {
    return options_.timeout + (Stood(now) - stood) - (now - began);
  };
  absl::StatusOr<PeerMatch> match;
  do {
    const absl::Time now = Clock::Real().Now();
    match = control_.FindPeer(question, now + std::min(left(now), options_.call_timeout));
    // The coordinator's own answers come before a call's deadline: that one was lost.
  } while (absl::IsDeadlineExceeded(match.status()) &&
           left(Clock::Real().Now()) > absl::ZeroDuration() && !asked.reply.cancelled());
  const std::string where = absl::StrCat("rank ", options_.self.value(), ", round ", question.round,
                                         ": the coordinator's choice of a peer");
  if (!match.ok()) {
    return Annotate(match.status(), absl::StrCat(where, ", asked for within ",
                                                 absl::FormatDuration(options_.timeout)));
  }
  const int32_t peer = match->peer.value();
  if (peer < 0 || static_cast<size_t>(peer) >= question.members.size()) {
    return absl::InternalError(absl::StrCat(where, " is ", peer, ", which is none of its ",
                                            question.members.size(), " members"));
  }
  return match->peer;
}

ArrivalMatchmaker::ArrivalMatchmaker(const ActorRef<Actor>& parent, Control& control,
                                     MatchOptions options)
    : thread_({.name = "pelton-match"}),
      asker_(SpawnUnder<MatchAsker>(parent, {.name = "matchmaker", .executor = &thread_}, &control,
                                    std::move(options))) {}

void ArrivalMatchmaker::Ask(Round round) {
  answer_.reset();
  asked_ = asker_.Ask(MatchQuestion{round, {}}, absl::InfiniteFuture());
}

absl::StatusOr<std::optional<Rank>> ArrivalMatchmaker::Answer() {
  if (asked_.valid() && asked_.ready()) answer_ = std::move(asked_).Take();
  if (!answer_.has_value()) return std::optional<Rank>();
  RETURN_IF_ERROR(answer_->status());
  return std::optional<Rank>(**answer_);
}

}  // namespace pelton
