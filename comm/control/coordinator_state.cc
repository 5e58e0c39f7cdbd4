#include "comm/control/coordinator_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

absl::Status OutOfBounds(absl::string_view field, int64_t value, int64_t least, int64_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": is ", value, ", must be ", least, " to ", most));
}

absl::Status Validate(const JoinRequest& request) {
  const int64_t name_bytes = static_cast<int64_t>(request.job.size());
  if (name_bytes < 1 || name_bytes > static_cast<int64_t>(limits::kMaxNameBytes)) {
    return OutOfBounds("bytes of job", name_bytes, 1, limits::kMaxNameBytes);
  }
  // A rank of another version is refused for that, whatever its other fields mean there.
  if (request.protocol_version != kControlProtocolVersion) return absl::OkStatus();
  const int32_t world_size = request.world_size.value();
  if (world_size < 1 || world_size > limits::kMaxWorldSize) {
    return OutOfBounds("world_size", world_size, 1, limits::kMaxWorldSize);
  }
  if (request.rank.value() < 0 || request.rank.value() >= world_size) {
    return OutOfBounds("rank", request.rank.value(), 0, world_size - 1);
  }
  if (request.host.boot_id.size() > limits::kMaxNameBytes) {
    return OutOfBounds("bytes of boot_id", request.host.boot_id.size(), 0, limits::kMaxNameBytes);
  }
  return absl::OkStatus();
}

}  // namespace

void CoordinatorState::Join(const Call& call, JoinRequest request, Outbox* outbox) {
  absl::Status valid = Validate(request);
  if (valid.ok() && !jobs_.contains(request.job) && jobs_.size() >= limits::kMaxJobs) {
    valid = absl::ResourceExhaustedError(
        absl::StrCat("job ", Quote(request.job), ": there are already ", jobs_.size(), " jobs"));
  }
  if (!valid.ok()) {
    outbox->Answer(call.id, std::move(valid));
    return;
  }
  const std::string name = request.job;
  auto found = jobs_.find(name);
  if (found == jobs_.end()) {
    last_generation_ = Generation(last_generation_.value() + 1);
    found = jobs_.try_emplace(name, name, last_generation_, heartbeat_timeout_).first;
  }
  found->second.Join(call, std::move(request), outbox);
  Sweep(name);
}

absl::StatusOr<JobState*> CoordinatorState::Find(const Caller& caller) {
  const auto found = jobs_.find(caller.job);
  if (found == jobs_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", caller.rank.value(), " is in no job of that name"));
  }
  RETURN_IF_ERROR(found->second.Admit(caller));
  return &found->second;
}

void CoordinatorState::Ask(const Call& call, const Caller& caller, ControlQuestion question,
                           Outbox* outbox) {
  const absl::StatusOr<JobState*> job = Find(caller);
  if (!job.ok()) return outbox->Answer(call.id, job.status());
  (*job)->Ask(call, caller.rank, std::move(question), outbox);
}

void CoordinatorState::Cancel(const std::string& job, uint64_t call, Outbox* outbox) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.Cancel(call, outbox);
  Sweep(job);
}

absl::Status CoordinatorState::OpenStream(const Caller& caller, absl::Time now, Outbox* outbox) {
  ASSIGN_OR_RETURN(JobState* const job, Find(caller));
  return job->OpenStream(caller.rank, now, outbox);
}

absl::Status CoordinatorState::Heartbeat(const Caller& caller, const Beat& beat, absl::Time now) {
  ASSIGN_OR_RETURN(JobState* const job, Find(caller));
  job->Heartbeat(caller.rank, beat, now);
  return absl::OkStatus();
}

absl::Status CoordinatorState::Report(const Caller& caller, const absl::Status& reason,
                                      Outbox* outbox) {
  if (reason.ok() || reason.message().size() > limits::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("reason: is '", reason.ToString().substr(0, 64),
                                                   "', must be an error of at most ",
                                                   limits::kMaxKeyBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(JobState* const job, Find(caller));
  return job->Report(caller.rank, reason, outbox);
}

absl::Status CoordinatorState::Leave(const Caller& caller, Outbox* outbox) {
  ASSIGN_OR_RETURN(JobState* const job, Find(caller));
  job->Leave(caller.rank, outbox);
  Sweep(caller.job);
  return absl::OkStatus();
}

void CoordinatorState::StreamBroke(const Caller& caller, absl::Time now, Outbox* outbox) {
  const absl::StatusOr<JobState*> job = Find(caller);
  if (!job.ok()) return;  // it has left, or was given up before
  (*job)->Lose(caller.rank, now, "its connection to the coordinator broke", outbox);
  Sweep(caller.job);
}

void CoordinatorState::Tick(absl::Time now, Outbox* outbox) {
  for (auto& [name, job] : jobs_) job.Tick(now, outbox);
  std::erase_if(jobs_, [](const auto& entry) { return entry.second.over(); });
}

absl::Time CoordinatorState::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, job] : jobs_) next = std::min(next, job.NextDeadline());
  return next;
}

void CoordinatorState::Sweep(const std::string& job) {
  const auto found = jobs_.find(job);
  if (found != jobs_.end() && found->second.over()) jobs_.erase(found);
}

size_t CoordinatorState::rank_count() const {
  size_t count = 0;
  for (const auto& [name, job] : jobs_) count += job.present().size();
  return count;
}

std::string CoordinatorState::Describe() const {
  std::string text;
  for (const auto& [name, job] : jobs_) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "job ", Quote(name), ": rank ",
                    ListRanks(job.present()));
  }
  return text;
}

}  // namespace pelton
