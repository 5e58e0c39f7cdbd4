#include "backend/arrival_matchmaker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/spawn.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {

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
