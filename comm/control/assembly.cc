#include "comm/control/assembly.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace pelton {

void Assembly::Join(const Call& call, JoinRequest request, Outbox* outbox) {
  PELTON_CHECK(membership_ == nullptr) << "the world is already whole";
  const Rank rank = request.rank;
  if (waiting_.empty() && !contradiction_) world_size_ = request.world_size;
  if (!contradiction_) {
    if (absl::Status status = Contradiction(request); !status.ok()) {
      contradiction_ = std::move(status);
      forget_at_ = call.deadline;
      Fail(*contradiction_, outbox);
    }
  }
  if (contradiction_) {
    told_.insert(rank);
    outbox->Answer(call.id, *contradiction_);
    return;
  }
  waiting_.emplace(rank, Waiting{call, std::move(request)});
  deadlines_.Add(call.id, call.deadline);
  if (waiting_.size() == static_cast<size_t>(world_size_.value())) Complete(outbox);
}

absl::Status Assembly::Contradiction(const JoinRequest& request) const {
  const int32_t rank = request.rank.value();
  if (request.protocol_version != kControlProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", Quote(job_), ": rank ", rank, " speaks protocol version ", request.protocol_version,
        ", the coordinator version ", kControlProtocolVersion));
  }
  if (request.world_size != world_size_) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", Quote(job_), ": rank ", rank, " joined with world size ",
                     request.world_size.value(), ", rank ", ListRanks(waiting()),
                     " with world size ", world_size_.value()));
  }
  if (const auto found = waiting_.find(request.rank); found != waiting_.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("job ", Quote(job_), ": two processes joined as rank ", rank, ": pid ",
                     found->second.request.host.pid, " and pid ", request.host.pid,
                     found->second.request.host.SameHost(request.host) ? "" : " of another host"));
  }
  return absl::OkStatus();
}

void Assembly::Complete(Outbox* outbox) {
  auto membership = std::make_shared<Membership>();
  membership->generation = generation_;
  for (auto& [rank, waiting] : waiting_) {
    membership->members.push_back({rank, std::move(waiting.request.host)});
  }
  membership_ = std::move(membership);
  for (const auto& [rank, waiting] : waiting_) {
    outbox->replies.push_back({.call = waiting.call.id, .status = {}, .membership = membership_});
  }
  waiting_.clear();
  deadlines_ = {};
}

void Assembly::Fail(const absl::Status& reason, Outbox* outbox) {
  for (const auto& [rank, waiting] : waiting_) {
    outbox->Answer(waiting.call.id, reason);
    told_.insert(rank);
    forget_at_ = std::max(forget_at_, waiting.call.deadline);
  }
  waiting_.clear();
  deadlines_ = {};
}

void Assembly::Cancel(uint64_t call, Outbox* outbox) {
  const auto gone = Find(call);
  if (gone == waiting_.end()) return;
  const std::string text =
      absl::StrCat("job ", Quote(job_), ": rank ", gone->first.value(), " (pid ",
                   gone->second.request.host.pid, ") went away while it was joining");
  waiting_.erase(gone);
  Fail(absl::UnavailableError(text), outbox);
}

void Assembly::Expire(absl::Time now, Outbox* outbox) {
  if (contradiction_ && now >= forget_at_) {
    contradiction_.reset();
    return;
  }
  const std::optional<uint64_t> call = deadlines_.Due(now);
  if (!call) return;
  const auto due = Find(*call);
  std::vector<Rank> missing;
  for (Rank rank(0); rank.value() < world_size_.value(); rank = Rank(rank.value() + 1)) {
    if (!waiting_.contains(rank)) missing.push_back(rank);
  }
  const absl::Duration timeout = due->second.call.deadline - due->second.call.now;
  Fail(absl::DeadlineExceededError(absl::StrCat(
           "job ", Quote(job_), ": ", waiting_.size(), " of ", world_size_.value(),
           " ranks joined within ", FormatTimeout(timeout), "; missing: ", ListRanks(missing))),
       outbox);
}

std::map<Rank, Assembly::Waiting>::const_iterator Assembly::Find(uint64_t call) const {
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [call](const auto& entry) { return entry.second.call.id == call; });
}

absl::Time Assembly::NextDeadline() const {
  return contradiction_ ? forget_at_ : deadlines_.Next();
}

bool Assembly::over() const {
  if (membership_ != nullptr) return false;
  if (!contradiction_) return waiting_.empty();
  return told_.size() >= static_cast<size_t>(world_size_.value());
}

std::vector<Rank> Assembly::waiting() const {
  std::vector<Rank> ranks;
  for (const auto& [rank, waiting] : waiting_) ranks.push_back(rank);
  return ranks;
}

}  // namespace pelton
