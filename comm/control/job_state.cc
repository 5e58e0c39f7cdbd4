#include "comm/control/job_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton {

JobState::JobState(std::string name, Generation generation, absl::Duration heartbeat_timeout)
    : name_(std::move(name)),
      generation_(generation),
      heartbeat_timeout_(heartbeat_timeout),
      assembly_(name_, generation) {}

void JobState::Join(const Call& call, JoinRequest request, Outbox* outbox) {
  if (assembly_.membership() != nullptr) {
    // A running job is not disturbed by a process that comes too late: it alone is told.
    outbox->Answer(call.id, absl::AlreadyExistsError(absl::StrCat(
                                "job ", Quote(name_), " is already running as generation ",
                                generation_.value(), "; rank ", ListRanks(present()), " of ",
                                ranks_.size(), " are in it, a second rank ", request.rank.value(),
                                " (pid ", request.host.pid, ") cannot join")));
    return;
  }
  assembly_.Join(call, std::move(request), outbox);
  if (assembly_.membership() != nullptr) StartWatching(call.now);
}

void JobState::StartWatching(absl::Time now) {
  ranks_.resize(assembly_.membership()->members.size());
  for (Watched& rank : ranks_) rank.last_heard = now;
  alive_count_ = static_cast<int>(ranks_.size());
  gathers_.emplace(WorldSize(alive_count_));
  // No two memberships have the same matchings, and each has the same ones in every run.
  peers_.emplace(WorldSize(alive_count_), generation_.value());
  arrivals_.emplace(WorldSize(alive_count_));
  liveness_check_ = now + heartbeat_timeout_;
}

absl::Status JobState::Admit(const Caller& caller) const {
  const int32_t rank = caller.rank.value();
  if (caller.generation != generation_) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", Quote(name_), ": rank ", rank, " speaks for generation ",
                     caller.generation.value(), ", the job is at ", generation_.value()));
  }
  if (rank < 0 || static_cast<size_t>(rank) >= ranks_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", Quote(name_), ": rank ", rank, " has not joined"));
  }
  const Watched& watched = ranks_[rank];
  if (watched.presence == Presence::kLost) return watched.lost_because;
  if (watched.presence == Presence::kLeft) {
    return absl::AbortedError(absl::StrCat("job ", Quote(name_), ": rank ", rank, " has left"));
  }
  return absl::OkStatus();
}

void JobState::KeyValue(const Call& call, KeyValueRequest request, Outbox* outbox) {
  key_values_.Handle(call, std::move(request), outbox);
}

void JobState::AllGather(const Call& call, Rank rank, AllGatherRequest request, Outbox* outbox) {
  if (broken_because_) {
    outbox->Answer(call.id, *broken_because_);
    return;
  }
  gathers_->Post(call, rank, std::move(request), outbox);
}

void JobState::FindPeer(const Call& call, Rank rank, const FindPeerRequest& request,
                        Outbox* outbox) {
  if (broken_because_) return outbox->Answer(call.id, *broken_because_);
  arrivals_->Ask(call, rank, request, outbox);
}

void JobState::Cancel(uint64_t call, Outbox* outbox) {
  assembly_.Cancel(call, outbox);
  if (gathers_) gathers_->Cancel(call);
  if (arrivals_) arrivals_->Cancel(call);
  key_values_.Cancel(call);
}

absl::Status JobState::OpenStream(Rank rank, absl::Time now, Outbox* outbox) {
  if (watched(rank).streaming) {
    return absl::AlreadyExistsError(absl::StrCat("job ", Quote(name_), ": rank ", rank.value(),
                                                 " already has a heartbeat stream"));
  }
  watched(rank).streaming = true;
  watched(rank).last_heard = now;
  for (const Order& order : orders_) {
    if (order.culprit != rank) outbox->orders.push_back({Address(rank), order});
  }
  return absl::OkStatus();
}

void JobState::Heartbeat(Rank rank, const Beat& beat, absl::Time now) {
  watched(rank).last_heard = now;
  watched(rank).round = beat.round;
  if (beat.round_trip > absl::ZeroDuration()) peers_->SetRoundTrip(rank, beat.round_trip);
}

absl::StatusOr<Matching> JobState::SelectPeers(Rank rank, const SelectPeersRequest& request) {
  return peers_->Select(rank, request);
}

void JobState::Lose(Rank rank, absl::Time now, const std::string& how, Outbox* outbox) {
  Watched& lost = watched(rank);
  if (lost.presence != Presence::kAlive) return;
  const Member& member = assembly_.membership()->members[rank.value()];
  lost.presence = Presence::kLost;
  lost.lost_because = absl::UnavailableError(
      absl::StrCat("job ", Quote(name_), ": rank ", rank.value(), " (pid ", member.host.pid,
                   ") died: ", how, "; last heard ",
                   absl::FormatDuration(absl::Trunc(now - lost.last_heard, absl::Milliseconds(1))),
                   " before, in round ", lost.round.value()));
  --alive_count_;
  // It may only have been slow: it learns that way that the others go on without it.
  if (lost.streaming) outbox->ended_streams.push_back({Address(rank), lost.lost_because});
  Issue({Order::Kind::kAbort, rank, lost.lost_because}, std::nullopt, outbox);
  Break(lost.lost_because, outbox);
  key_values_.Fail(lost.lost_because, outbox);
}

absl::Status JobState::Report(Rank rank, Rank culprit, const absl::Status& reason, Outbox* outbox) {
  if (culprit.value() < 0 || static_cast<size_t>(culprit.value()) >= ranks_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("culprit: is ", culprit.value(), ", must be 0 to ", ranks_.size() - 1));
  }
  // One report a rank: the first failure is the one that explains the others, and memory is
  // bounded.
  if (std::exchange(watched(rank).reported, true)) return absl::OkStatus();
  const absl::Status named(
      reason.code(),
      absl::StrCat("job ", Quote(name_), ": rank ", rank.value(), " reported",
                   rank == culprit ? "" : absl::StrCat(" that rank ", culprit.value(), " failed"),
                   ": ", reason.message()));
  Issue({Order::Kind::kAbort, culprit, named}, rank, outbox);
  const absl::Status aborted = absl::AbortedError(named.message());
  Break(aborted, outbox);
  key_values_.Fail(aborted, outbox);
  return absl::OkStatus();
}

void JobState::Leave(Rank rank, Outbox* outbox) {
  watched(rank).presence = Presence::kLeft;
  --alive_count_;
  if (watched(rank).streaming) outbox->ended_streams.push_back({Address(rank), {}});
  const absl::Status left =
      absl::AbortedError(absl::StrCat("job ", Quote(name_), ": rank ", rank.value(),
                                      " left the job (its script ended, or destroyed its "
                                      "process group)"));
  Issue({Order::Kind::kPeerLeft, rank, left}, std::nullopt, outbox);
  gathers_->Leave(rank, left, outbox);
  arrivals_->Leave(rank, outbox);
  if (alive_count_ == 0) key_values_.Fail(left, outbox);
}

void JobState::Issue(Order order, std::optional<Rank> reporter, Outbox* outbox) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank to(static_cast<int32_t>(i));
    if (ranks_[i].presence != Presence::kAlive || !ranks_[i].streaming) continue;
    if (to == reporter || (to == order.culprit && !reporter)) continue;
    outbox->orders.push_back({Address(to), order});
  }
  orders_.push_back(std::move(order));
}

void JobState::Break(const absl::Status& reason, Outbox* outbox) {
  if (!broken_because_) broken_because_ = reason;
  gathers_->Fail(reason, outbox);
  arrivals_->Fail(reason, outbox);
}

void JobState::Tick(absl::Time now, Outbox* outbox) {
  assembly_.Expire(now, outbox);
  if (gathers_) gathers_->Expire(now, outbox);
  if (arrivals_) arrivals_->Expire(now, outbox);
  key_values_.Expire(now, outbox);
  if (now < liveness_check_) return;
  liveness_check_ = absl::InfiniteFuture();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].presence != Presence::kAlive) continue;
    if (ranks_[i].last_heard + heartbeat_timeout_ <= now) {
      Lose(Rank(static_cast<int32_t>(i)), now,
           absl::StrCat("no heartbeat for ", absl::FormatDuration(heartbeat_timeout_)), outbox);
    } else {
      liveness_check_ = std::min(liveness_check_, ranks_[i].last_heard + heartbeat_timeout_);
    }
  }
}

absl::Time JobState::NextDeadline() const {
  const absl::Time gathers = gathers_ ? gathers_->NextDeadline() : absl::InfiniteFuture();
  const absl::Time arrivals = arrivals_ ? arrivals_->NextDeadline() : absl::InfiniteFuture();
  return std::min(
      {assembly_.NextDeadline(), gathers, arrivals, key_values_.NextDeadline(), liveness_check_});
}

bool JobState::over() const {
  return assembly_.membership() == nullptr ? assembly_.over() : alive_count_ == 0;
}

std::vector<Rank> JobState::present() const {
  if (assembly_.membership() == nullptr) return assembly_.waiting();
  std::vector<Rank> ranks;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].presence == Presence::kAlive) ranks.emplace_back(static_cast<int32_t>(i));
  }
  return ranks;
}

}  // namespace pelton
