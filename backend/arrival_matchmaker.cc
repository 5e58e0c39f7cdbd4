#include "backend/arrival_matchmaker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {

ArrivalMatchmaker::ArrivalMatchmaker(Control& control, Options options)
    : control_(control), options_(std::move(options)), thread_(&ArrivalMatchmaker::Run, this) {}

ArrivalMatchmaker::~ArrivalMatchmaker() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void ArrivalMatchmaker::Ask(Round round) {
  MutexLock lock(&mutex_);
  asked_ = round;
  wanted_ = round;
  answer_.reset();
  changed_.SignalAll();
}

absl::StatusOr<std::optional<Rank>> ArrivalMatchmaker::Answer() {
  MutexLock lock(&mutex_);
  if (!answer_.has_value()) return std::optional<Rank>();
  RETURN_IF_ERROR(answer_->status());
  return std::optional<Rank>(**answer_);
}

void ArrivalMatchmaker::Run() {
  while (true) {
    Round round;
    {
      MutexLock lock(&mutex_);
      while (!wanted_.has_value() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      round = *std::exchange(wanted_, std::nullopt);
    }
    absl::StatusOr<Rank> found = Find(round);
    {
      MutexLock lock(&mutex_);
      if (round != asked_) continue;  // that round was given up
      answer_ = std::move(found);
    }
    options_.wake();
  }
}

bool ArrivalMatchmaker::stopping() {
  MutexLock lock(&mutex_);
  return stopping_;
}

absl::StatusOr<Rank> ArrivalMatchmaker::Find(Round round) {
  FindPeerRequest question = options_.question;
  question.round = round.value();
  const absl::Time deadline = Clock::Real().Now() + options_.timeout;
  absl::StatusOr<PeerMatch> match;
  do {
    match = control_.FindPeer(question,
                              std::min(deadline, Clock::Real().Now() + options_.call_timeout));
    // The coordinator's own answers come before a call's deadline: that one was lost.
  } while (absl::IsDeadlineExceeded(match.status()) && Clock::Real().Now() < deadline &&
           !stopping());
  const std::string where = absl::StrCat("rank ", options_.self.value(), ", round ", round.value(),
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

}  // namespace pelton
