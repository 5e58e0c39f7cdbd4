#include "comm/control/gather_state.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {

std::vector<Rank> GatherState::MembersOf(const Key& key) const {
  return key.members.empty() ? Group::World(world_size_).members : key.members;
}

absl::Status GatherState::CheckMembers(Rank rank, const std::vector<Rank>& members) const {
  if (members.empty()) return absl::OkStatus();
  return Annotate(CheckGroup(Group{members, Generation(1)}, world_size_, rank), "members");
}

absl::Status GatherState::Validate(Rank rank, const Key& key, const std::string& value) const {
  if (key.name.empty() || key.name.size() > limits::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name: has ", key.name.size(), " bytes, must have 1 to ", limits::kMaxKeyBytes));
  }
  RETURN_IF_ERROR(CheckMembers(rank, key.members));
  const auto found = gathers_.find(key);
  size_t bytes = value.size();
  if (found != gathers_.end()) {
    if (found->second.posted.contains(rank)) {
      return absl::AlreadyExistsError(absl::StrCat("all-gather ", Quote(key.name), ": rank ",
                                                   rank.value(), " already waits in it"));
    }
    bytes += found->second.bytes;
  }
  if (bytes > limits::kMaxValueBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all-gather ", Quote(key.name), ": the values of all ranks have ", bytes,
                     " bytes, the limit is ", limits::kMaxValueBytes));
  }
  if (bytes_ + value.size() > limits::kMaxStoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all-gather ", Quote(key.name), ": all that are under way would hold ",
                     bytes_ + value.size(), " bytes, the limit is ", limits::kMaxStoreBytes));
  }
  return absl::OkStatus();
}

void GatherState::Post(const Call& call, Rank rank, AllGatherRequest request, Outbox* outbox) {
  Key key{std::move(request.members), std::move(request.name)};
  // A caller that lists all ranks meets callers that list none.
  if (key.members == Group::World(world_size_).members) key.members.clear();
  if (absl::Status valid = Validate(rank, key, request.value); !valid.ok()) {
    outbox->Answer(call.id, std::move(valid));
    return;
  }
  if (const absl::Status hopeless = WhyHopeless(key); !hopeless.ok()) {
    outbox->Answer(call.id, hopeless);
    return;
  }
  Gather& gather = gathers_[key];
  gather.bytes += request.value.size();
  bytes_ += request.value.size();
  gather.posted.emplace(rank, Posted{call, std::move(request.value)});
  keys_.emplace(call.id, std::pair(key, rank));
  deadlines_.Add(call.id, call.deadline);
  if (gather.posted.size() == MembersOf(key).size()) Complete(key, outbox);
}

void GatherState::Complete(const Key& key, Outbox* outbox) {
  Gather gather = Take(key);
  auto values = std::make_shared<std::vector<std::string>>();
  values->reserve(gather.posted.size());
  for (const Rank member : MembersOf(key)) {
    values->push_back(std::move(gather.posted.at(member).value));
  }
  for (const auto& [rank, posted] : gather.posted) {
    outbox->Answer(posted.call.id, AllGatherResult{values});
  }
}

GatherState::Gather GatherState::Take(const Key& key) {
  const auto found = gathers_.find(key);
  PELTON_CHECK(found != gathers_.end()) << "no all-gather '" << key.name << "'";
  Gather gather = std::move(found->second);
  gathers_.erase(found);
  bytes_ -= gather.bytes;
  for (const auto& [rank, posted] : gather.posted) {
    keys_.erase(posted.call.id);
    deadlines_.Remove(posted.call.id, posted.call.deadline);
  }
  return gather;
}

void GatherState::Cancel(uint64_t call) {
  const auto found = keys_.find(call);
  if (found == keys_.end()) return;
  const auto [key, rank] = found->second;
  keys_.erase(found);
  const auto gather = gathers_.find(key);
  const auto posted = gather->second.posted.find(rank);
  deadlines_.Remove(call, posted->second.call.deadline);
  gather->second.bytes -= posted->second.value.size();
  bytes_ -= posted->second.value.size();
  gather->second.posted.erase(posted);
  if (gather->second.posted.empty()) gathers_.erase(gather);
}

void GatherState::Expire(absl::Time now, Outbox* outbox) {
  while (const std::optional<uint64_t> call = deadlines_.Due(now)) {
    const auto [key, rank] = keys_.at(*call);
    const auto& posted = gathers_.at(key).posted;
    const Call& expired = posted.at(rank).call;
    const std::vector<Rank> members = MembersOf(key);
    std::vector<Rank> missing;
    for (const Rank member : members) {
      if (!posted.contains(member)) missing.push_back(member);
    }
    FailOne(key,
            absl::DeadlineExceededError(absl::StrCat(
                posted.size(), " of ", members.size(), " ranks arrived within ",
                FormatTimeout(expired.deadline - expired.now), "; missing: ", ListRanks(missing))),
            outbox);
  }
}

absl::Status GatherState::WhyHopeless(const Key& key) const {
  for (const auto& [rank, reason] : left_) {
    const std::vector<Rank>& members = key.members;  // none: all
    const bool is_member =
        members.empty() || std::find(members.begin(), members.end(), rank) != members.end();
    if (is_member) return Annotate(reason, absl::StrCat("all-gather ", Quote(key.name)));
  }
  return absl::OkStatus();
}

void GatherState::Leave(Rank rank, const absl::Status& reason, Outbox* outbox) {
  left_.emplace(rank, reason);
  std::vector<Key> hopeless;
  for (const auto& [key, gather] : gathers_) {
    if (!WhyHopeless(key).ok()) hopeless.push_back(key);
  }
  for (const Key& key : hopeless) FailOne(key, reason, outbox);
}

void GatherState::Fail(const absl::Status& reason, Outbox* outbox) {
  while (!gathers_.empty()) FailOne(Key(gathers_.begin()->first), reason, outbox);
}

void GatherState::FailOne(const Key& key, const absl::Status& reason, Outbox* outbox) {
  const absl::Status named = Annotate(reason, absl::StrCat("all-gather ", Quote(key.name)));
  for (const auto& [rank, posted] : Take(key).posted) outbox->Answer(posted.call.id, named);
}

}  // namespace pelton
