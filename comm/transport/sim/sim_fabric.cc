#include "comm/transport/sim/sim_fabric.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

size_t IndexOf(Rank rank) { return static_cast<size_t>(rank.value()); }

}  // namespace

SimFabric::SimFabric(WorldSize world_size, const SimOptions& options)
    : world_size_(world_size),
      clock_(*options.clock),
      native_kinds_(options.native_kinds),
      network_(world_size, options.link, options.seed),
      stalled_until_(static_cast<size_t>(world_size.value()), absl::InfinitePast()),
      dead_(static_cast<size_t>(world_size.value()), false) {}

SimFabric::~SimFabric() {
  MutexLock lock(&mutex_);
  PELTON_CHECK(groups_.empty()) << groups_.size() << " communicators outlive their fabric";
}

std::unique_ptr<Transport> SimFabric::MakeTransport(Rank rank) {
  PELTON_CHECK(rank.value() >= 0 && rank.value() < world_size_.value()) << rank;
  return std::make_unique<SimTransport>(*this, rank);
}

std::vector<std::unique_ptr<Transport>> SimFabric::MakeTransports() {
  std::vector<std::unique_ptr<Transport>> transports;
  for (int32_t r = 0; r < world_size_.value(); ++r) transports.push_back(MakeTransport(Rank(r)));
  return transports;
}

absl::Status SimFabric::CheckAlive(const Group& group) const {
  for (Rank member : group.members) {
    if (!dead_[IndexOf(member)]) continue;
    return absl::UnavailableError(absl::StrCat("rank ", member.value(), " died"));
  }
  return absl::OkStatus();
}

SimGroup* SimFabric::AddGroup(CommunicatorId id, const Group& group) {
  groups_.push_back(std::make_unique<SimGroup>(id, group, native_kinds_, network_, events_));
  return groups_.back().get();
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> SimFabric::OpenAll(CommunicatorId id,
                                                                              const Group& group) {
  RETURN_IF_ERROR(CheckGroup(group, world_size_));
  SimGroup* opened = nullptr;
  {
    MutexLock lock(&mutex_);
    RETURN_IF_ERROR(CheckAlive(group));
    opened = AddGroup(id, group);
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int32_t r = 0; r < group.size().value(); ++r) {
    communicators.push_back(std::make_unique<SimCommunicator>(*this, *opened, Rank(r)));
  }
  return communicators;
}

absl::StatusOr<std::unique_ptr<Communicator>> SimFabric::Open(Rank rank, CommunicatorId id,
                                                              const Group& group,
                                                              absl::Time deadline) {
  RETURN_IF_ERROR(CheckGroup(group, world_size_, rank));
  const std::optional<Rank> mine = group.RankOf(rank);
  MutexLock lock(&mutex_);
  const MeetingKey key{id.value(), group.generation.value(), group.members};
  const size_t n = group.members.size();
  auto at = meetings_.try_emplace(key, Meeting{std::vector<bool>(n), n, 0, nullptr}).first;
  Meeting& meeting = at->second;
  if (meeting.arrived[IndexOf(*mine)]) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", rank.value(), " opens communicator ", id.value(), " twice"));
  }
  meeting.arrived[IndexOf(*mine)] = true;
  ++meeting.left_to_leave;
  if (--meeting.left_to_arrive == 0) {
    meeting.opened = AddGroup(id, group);
    opened_.SignalAll();
  }
  const absl::Status status = WaitForOthers(group, meeting, deadline);
  if (!status.ok()) {
    meeting.arrived[IndexOf(*mine)] = false;
    ++meeting.left_to_arrive;
  }
  SimGroup* const opened = meeting.opened;
  if (--meeting.left_to_leave == 0) meetings_.erase(at);
  RETURN_IF_ERROR(
      Annotate(status, absl::StrCat("rank ", rank.value(), ": opening communicator ", id.value())));
  return std::make_unique<SimCommunicator>(*this, *opened, *mine);
}

absl::Status SimFabric::WaitForOthers(const Group& group, Meeting& meeting, absl::Time deadline) {
  bool late = is_virtual();  // while the only thread waits, nobody can come
  while (meeting.opened == nullptr) {
    RETURN_IF_ERROR(CheckAlive(group));
    if (late) {
      std::vector<int32_t> missing;
      for (size_t i = 0; i < meeting.arrived.size(); ++i) {
        if (!meeting.arrived[i]) missing.push_back(group.members[i].value());
      }
      return absl::DeadlineExceededError(
          absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " did not open it"));
    }
    late = opened_.WaitWithDeadline(&mutex_, deadline);
  }
  return absl::OkStatus();
}

void SimFabric::AbortAll(Rank rank, const absl::Status& reason) {
  MutexLock lock(&mutex_);
  for (auto& group : groups_) {
    const std::optional<Rank> member = group->group().RankOf(rank);
    if (member.has_value()) group->Abort(*member, reason, clock_.Now());
  }
  RunDueLocked(clock_.Now());
}

absl::StatusOr<Completion> SimFabric::Launch(SimGroup& group, Rank rank,
                                             const Operation& operation) {
  MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  const Rank world_rank = group.group().members[IndexOf(rank)];
  absl::StatusOr<Completion> completion =
      group.Launch(rank, operation, now, std::max(now, stalled_until_[IndexOf(world_rank)]));
  RunDueLocked(now);
  return completion;
}

bool SimFabric::Progress(SimGroup& group, Rank rank) {
  MutexLock lock(&mutex_);
  const uint64_t moves = group.moves(rank);
  RunDueLocked(clock_.Now());
  return group.moves(rank) != moves;
}

OperationRunner::State SimFabric::Query(SimGroup& group, Rank rank, Completion completion) {
  MutexLock lock(&mutex_);
  return group.Query(rank, completion);
}

void SimFabric::Park(SimGroup& group, Rank rank, absl::Time until) {
  if (is_virtual()) return;  // the only thread must not sleep
  Waker& waker = group.waker(rank);
  {
    MutexLock lock(&mutex_);
    parked_next_event_ = events_.NextTime();
    until = std::min(until, parked_next_event_);
    parked_.push_back(&waker);
  }
  waker.Park(until - clock_.Now());
  MutexLock lock(&mutex_);
  std::erase(parked_, &waker);
}

void SimFabric::Wake(SimGroup& group, Rank rank) {
  MutexLock lock(&mutex_);
  group.waker(rank).Kick();
}

void SimFabric::Abort(SimGroup& group, Rank rank, const absl::Status& reason) {
  MutexLock lock(&mutex_);
  group.Abort(rank, reason, clock_.Now());
  RunDueLocked(clock_.Now());
}

std::vector<Rank> SimFabric::Missing(SimGroup& group, Rank rank) {
  MutexLock lock(&mutex_);
  return group.Missing(rank);
}

absl::StatusOr<std::optional<Rank>> SimFabric::FindSender(SimGroup& group, Rank rank, int32_t tag) {
  MutexLock lock(&mutex_);
  RunDueLocked(clock_.Now());
  return group.FindSender(rank, tag);
}

void SimFabric::Close(SimGroup& group, Rank rank) {
  MutexLock lock(&mutex_);
  group.Close(rank, clock_.Now());
  RunDueLocked(clock_.Now());
  if (!group.all_closed()) return;
  events_.Cancel(&group);
  std::erase_if(groups_, [&group](const auto& owned) { return owned.get() == &group; });
}

absl::Time SimFabric::NextEventTime() {
  MutexLock lock(&mutex_);
  return events_.NextTime();
}

void SimFabric::RunDue(absl::Time now) {
  MutexLock lock(&mutex_);
  RunDueLocked(now);
}

void SimFabric::RunDueLocked(absl::Time now) {
  while (std::optional<SimEvent> event = events_.PopDue(now)) event->group->Run(*event, now);
  // A thread that sleeps until the event that was the next one would miss an earlier one.
  if (events_.NextTime() >= parked_next_event_) return;
  parked_next_event_ = events_.NextTime();
  for (Waker* waker : parked_) waker->Kick();
}

void SimFabric::KillRank(Rank rank) {
  MutexLock lock(&mutex_);
  dead_[IndexOf(rank)] = true;
  opened_.SignalAll();
  const absl::Time now = clock_.Now();
  for (auto& group : groups_) {
    const std::optional<Rank> member = group->group().RankOf(rank);
    if (!member.has_value()) continue;
    const auto reason = absl::UnavailableError(absl::StrCat("rank ", member->value(), " died"));
    group->End(*member, reason, reason, now);
  }
  RunDueLocked(now);
}

void SimFabric::Stall(Rank rank, absl::Time until) {
  MutexLock lock(&mutex_);
  stalled_until_[IndexOf(rank)] = until;
}

void SimFabric::Delay(Link link, absl::Duration extra) {
  MutexLock lock(&mutex_);
  network_.Delay(link, extra);
}

void SimFabric::SetLink(Link link, const LinkModel& model) {
  MutexLock lock(&mutex_);
  network_.SetModel(link, model);
}

uint64_t SimFabric::BytesSent(Link link) {
  MutexLock lock(&mutex_);
  return network_.BytesSent(link);
}

uint64_t SimFabric::TotalBytesSent() {
  MutexLock lock(&mutex_);
  return network_.TotalBytesSent();
}

}  // namespace pelton
