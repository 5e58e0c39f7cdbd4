#include "comm/control/peer_selection_state.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"

namespace pelton {
namespace {

bool HasMatchings(PeerPolicy policy) {
  return policy == PeerPolicy::kRandomMatching || policy == PeerPolicy::kLatencyAware;
}

}  // namespace

absl::StatusOr<Matching> PeerSelectionState::Select(Rank rank, const SelectPeersRequest& request) {
  const WorldSize world_size(static_cast<int32_t>(round_trips_.size()));
  RETURN_IF_ERROR(Annotate(
      CheckGroup(pelton::Group{request.members, Generation(1)}, world_size, rank), "members"));
  if (!HasMatchings(request.policy)) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy: ", static_cast<int>(request.policy), " is not one of: ",
                     NameOf(PeerPolicy::kRandomMatching), ", ", NameOf(PeerPolicy::kLatencyAware)));
  }
  const Key key(request.group, request.members, request.policy);
  Group& group = Use(key);
  auto decided = group.decisions.find(request.step);
  if (decided == group.decisions.end()) {
    if (group.decisions.size() >= kStepsKept && request.step < group.decisions.begin()->first) {
      return absl::OutOfRangeError(absl::StrCat("step: ", request.step, " is forgotten; kept are ",
                                                group.decisions.begin()->first, " to ",
                                                group.decisions.rbegin()->first));
    }
    decided = group.decisions.emplace(request.step, Decide(key, request.step)).first;
  }
  const Matching matching = decided->second;
  if (group.decisions.size() > kStepsKept) group.decisions.erase(group.decisions.begin());
  return matching;
}

PeerSelectionState::Group& PeerSelectionState::Use(const Key& key) {
  if (!groups_.contains(key) && groups_.size() >= kGroupsKept) {
    groups_.erase(std::min_element(
        groups_.begin(), groups_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  Group& group = groups_[key];
  group.last_use = ++uses_;
  return group;
}

Matching PeerSelectionState::Decide(const Key& key, uint64_t step) const {
  const auto& [group, members, policy] = key;
  const size_t count = members.size();
  if (policy == PeerPolicy::kLatencyAware) {
    std::vector<absl::Duration> distances;
    for (Rank member : members) {
      distances.push_back(round_trips_[static_cast<size_t>(member.value())]);
    }
    return MatchAlong(distances, step);
  }
  std::vector<int32_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  // Neighbouring steps must not give neighbouring seeds of one engine.
  return MatchAtRandom(std::move(places), count, SplitMix(seed_, step));
}

}  // namespace pelton
