#include "comm/control/job_state.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "comm/control/arrival_state.h"
#include "comm/control/gather_state.h"
#include "comm/control/key_value_state.h"
#include "comm/control/peer_selection_state.h"

namespace pelton {

// What answers the ranks of a running job, a state machine for each kind of question.
// Threads: one at a time. Owns: the state machines.
struct JobState::Answerers {
  // No two memberships have the same matchings, and each has the same ones in every run.
  Answerers(WorldSize world_size, Generation generation)
      : gathers(world_size), arrivals(world_size), peers(world_size, generation.value()) {}

  void Ask(const Call& call, Rank, KeyValueRequest request, Outbox* outbox) {
    key_values.Handle(call, std::move(request), outbox);
  }
  void Ask(const Call& call, Rank rank, AllGatherRequest request, Outbox* outbox) {
    if (broken_because) return outbox->Answer(call.id, *broken_because);
    gathers.Post(call, rank, std::move(request), outbox);
  }
  void Ask(const Call& call, Rank rank, const SelectPeersRequest& request, Outbox* outbox) {
    outbox->Answer(call.id, peers.Select(rank, request));
  }
  void Ask(const Call& call, Rank rank, const FindPeerRequest& request, Outbox* outbox) {
    if (broken_because) return outbox->Answer(call.id, *broken_because);
    arrivals.Ask(call, rank, request, outbox);
  }

  // Does it with every one in which calls wait.
  template <typename Do>
  void ForEach(Do act) {
    act(gathers);
    act(arrivals);
    act(key_values);
  }
  // Answers all that wait, and from now on those that would wait for other ranks.
  void Break(const absl::Status& reason, Outbox* outbox) {
    if (!broken_because) broken_because = reason;
    ForEach([&](auto& state) { state.Fail(reason, outbox); });
  }

  GatherState gathers;
  ArrivalState arrivals;
  KeyValueState key_values;
  PeerSelectionState peers;
  std::optional<absl::Status> broken_because;  // of the first loss or report
};

JobState::JobState(std::string name, Generation generation, absl::Duration heartbeat_timeout)
    : name_(std::move(name)),
      generation_(generation),
      heartbeat_timeout_(heartbeat_timeout),
      assembly_(name_, generation) {}

JobState::~JobState() = default;

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
  answerers_ = std::make_unique<Answerers>(WorldSize(alive_count_), generation_);
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

void JobState::Ask(const Call& call, Rank rank, ControlQuestion question, Outbox* outbox) {
  std::visit([&](auto& kind) { answerers_->Ask(call, rank, std::move(kind), outbox); }, question);
}

void JobState::Cancel(uint64_t call, Outbox* outbox) {
  assembly_.Cancel(call, outbox);
  if (answerers_ == nullptr) return;
  answerers_->ForEach([&](auto& state) { state.Cancel(call); });
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
  if (beat.round_trip > absl::ZeroDuration()) answerers_->peers.SetRoundTrip(rank, beat.round_trip);
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
  Issue({Order::Kind::kAbort, rank, lost.lost_because}, outbox);
  answerers_->Break(lost.lost_because, outbox);
}

absl::Status JobState::Report(Rank rank, const absl::Status& reason, Outbox* outbox) {
  // One report a rank: the first failure is the one that explains the others, and memory is
  // bounded.
  if (std::exchange(watched(rank).reported, true)) return absl::OkStatus();
  const absl::Status named(
      reason.code(),
      absl::StrCat("job ", Quote(name_), ": rank ", rank.value(), " reported: ", reason.message()));
  Issue({Order::Kind::kAbort, rank, named}, outbox);
  answerers_->Break(absl::AbortedError(named.message()), outbox);
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
  Issue({Order::Kind::kPeerLeft, rank, left}, outbox);
  answerers_->gathers.Leave(rank, left, outbox);
  answerers_->arrivals.Leave(rank, outbox);
  if (alive_count_ == 0) answerers_->key_values.Fail(left, outbox);
}

void JobState::Issue(Order order, Outbox* outbox) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank to(static_cast<int32_t>(i));
    if (ranks_[i].presence != Presence::kAlive || !ranks_[i].streaming) continue;
    if (to == order.culprit) continue;
    outbox->orders.push_back({Address(to), order});
  }
  orders_.push_back(std::move(order));
}

void JobState::Tick(absl::Time now, Outbox* outbox) {
  assembly_.Expire(now, outbox);
  if (answerers_ == nullptr) return;
  answerers_->ForEach([&](auto& state) { state.Expire(now, outbox); });
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
  absl::Time next = std::min(assembly_.NextDeadline(), liveness_check_);
  if (answerers_ == nullptr) return next;
  answerers_->ForEach([&](auto& state) { next = std::min(next, state.NextDeadline()); });
  return next;
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
