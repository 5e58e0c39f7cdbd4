#include "comm/control/gather_state.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {

absl::Status GatherState::Validate(Rank rank, const std::string& name,
                                   const std::string& value) const {
  if (name.empty() || name.size() > limits::kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: has ", name.size(), " bytes, must have 1 to ", limits::kMaxKeyBytes));
  }
  const auto found = gathers_.find(name);
  size_t bytes = value.size();
  if (found != gathers_.end()) {
    if (found->second.posted.contains(rank)) {
      return absl::AlreadyExistsError(absl::StrCat("all-gather ", Quote(name), ": rank ",
                                                   rank.value(), " already waits in it"));
    }
    bytes += found->second.bytes;
  }
  if (bytes > limits::kMaxValueBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all-gather ", Quote(name), ": the values of all ranks have ", bytes,
                     " bytes, the limit is ", limits::kMaxValueBytes));
  }
  if (bytes_ + value.size() > limits::kMaxStoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all-gather ", Quote(name), ": all that are under way would hold ",
                     bytes_ + value.size(), " bytes, the limit is ", limits::kMaxStoreBytes));
  }
  return absl::OkStatus();
}

void GatherState::Post(const Call& call, Rank rank, const std::string& name, std::string value,
                       Outbox* outbox) {
  if (absl::Status valid = Validate(rank, name, value); !valid.ok()) {
    outbox->Answer(call.id, std::move(valid));
    return;
  }
  Gather& gather = gathers_[name];
  gather.bytes += value.size();
  bytes_ += value.size();
  gather.posted.emplace(rank, Posted{call, std::move(value)});
  names_.emplace(call.id, std::pair(name, rank));
  deadlines_.Add(call.id, call.deadline);
  if (gather.posted.size() == static_cast<size_t>(world_size_.value())) Complete(name, outbox);
}

void GatherState::Complete(const std::string& name, Outbox* outbox) {
  Gather gather = Take(name);
  auto values = std::make_shared<std::vector<std::string>>();
  values->reserve(gather.posted.size());
  for (auto& [rank, posted] : gather.posted) values->push_back(std::move(posted.value));
  for (const auto& [rank, posted] : gather.posted) {
    outbox->replies.push_back({.call = posted.call.id, .status = {}, .gathered = values});
  }
}

GatherState::Gather GatherState::Take(const std::string& name) {
  const auto found = gathers_.find(name);
  PELTON_CHECK(found != gathers_.end()) << "no all-gather '" << name << "'";
  Gather gather = std::move(found->second);
  gathers_.erase(found);
  bytes_ -= gather.bytes;
  for (const auto& [rank, posted] : gather.posted) {
    names_.erase(posted.call.id);
    deadlines_.Remove(posted.call.id, posted.call.deadline);
  }
  return gather;
}

void GatherState::Cancel(uint64_t call) {
  const auto found = names_.find(call);
  if (found == names_.end()) return;
  const auto [name, rank] = found->second;
  names_.erase(found);
  const auto gather = gathers_.find(name);
  const auto posted = gather->second.posted.find(rank);
  deadlines_.Remove(call, posted->second.call.deadline);
  gather->second.bytes -= posted->second.value.size();
  bytes_ -= posted->second.value.size();
  gather->second.posted.erase(posted);
  if (gather->second.posted.empty()) gathers_.erase(gather);
}

void GatherState::Expire(absl::Time now, Outbox* outbox) {
  while (const std::optional<uint64_t> call = deadlines_.Due(now)) {
    const auto [name, rank] = names_.at(*call);
    const auto& posted = gathers_.at(name).posted;
    const Call& expired = posted.at(rank).call;
    std::vector<Rank> missing;
    for (Rank r(0); r.value() < world_size_.value(); r = Rank(r.value() + 1)) {
      if (!posted.contains(r)) missing.push_back(r);
    }
    FailOne(name,
            absl::DeadlineExceededError(absl::StrCat(
                posted.size(), " of ", world_size_.value(), " ranks arrived within ",
                FormatTimeout(expired.deadline - expired.now), "; missing: ", ListRanks(missing))),
            outbox);
  }
}

void GatherState::Fail(const absl::Status& reason, Outbox* outbox) {
  while (!gathers_.empty()) FailOne(std::string(gathers_.begin()->first), reason, outbox);
}

void GatherState::FailOne(const std::string& name, const absl::Status& reason, Outbox* outbox) {
  const absl::Status named = Annotate(reason, absl::StrCat("all-gather ", Quote(name)));
  for (const auto& [rank, posted] : Take(name).posted) outbox->Answer(posted.call.id, named);
}

}  // namespace pelton
