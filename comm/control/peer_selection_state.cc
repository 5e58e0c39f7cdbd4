#include "comm/control/peer_selection_state.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// How much the newest sample counts in the average of a rank's lateness.
constexpr double kNewest = 0.5;

size_t PlaceOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

bool IsKnown(PeerPolicy policy) {
  return policy == PeerPolicy::kRandomMatching || policy == PeerPolicy::kLatencyAware ||
         policy == PeerPolicy::kAvoidStragglers;
}

// Neighbouring steps must not give neighbouring seeds of one engine. Source: Steele et al., Fast
// Splittable Pseudorandom Number Generators (splitmix64).
uint64_t Mixed(uint64_t seed, uint64_t step) {
  uint64_t x = seed + (step + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<Matching> PeerSelectionState::Select(Rank rank, const SelectPeersRequest& request,
                                                    absl::Time now) {
  const WorldSize world_size(static_cast<int32_t>(round_trips_.size()));
  RETURN_IF_ERROR(Annotate(
      CheckGroup(pelton::Group{request.members, Generation(1)}, world_size, rank), "members"));
  if (!IsKnown(request.policy)) {
    return absl::InvalidArgumentError(absl::StrCat("policy: ", static_cast<int>(request.policy),
                                                   " is not one of: ", PeerPolicyNames()));
  }
  const Key key(request.members, request.policy);
  Group& group = Use(key);
  auto decided = group.decisions.find(request.step);
  if (decided == group.decisions.end()) {
    if (group.decisions.size() >= kStepsKept && request.step < group.decisions.begin()->first) {
      return absl::OutOfRangeError(absl::StrCat("step: ", request.step, " is forgotten; kept are ",
                                                group.decisions.begin()->first, " to ",
                                                group.decisions.rbegin()->first));
    }
    Decision decision{Decide(key, group, request.step, now), now,
                      std::vector<bool>(request.members.size())};
    decided = group.decisions.emplace(request.step, std::move(decision)).first;
  }
  Decision& decision = decided->second;
  const size_t place = PlaceOf(request.members, rank);
  if (!decision.has_asked[place]) {
    decision.has_asked[place] = true;
    group.lateness[place] =
        (1 - kNewest) * group.lateness[place] + kNewest * (now - decision.asked_first);
  }
  const Matching matching = decision.matching;
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
  group.lateness.resize(key.first.size());
  group.last_use = ++uses_;
  return group;
}

Matching PeerSelectionState::Decide(const Key& key, Group& group, uint64_t step,
                                    absl::Time now) const {
  const size_t count = key.first.size();
  if (key.second == PeerPolicy::kLatencyAware) {
    std::vector<absl::Duration> distances;
    for (Rank member : key.first) {
      distances.push_back(round_trips_[static_cast<size_t>(member.value())]);
    }
    return MatchAlong(distances, step);
  }
  std::vector<int32_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  if (key.second == PeerPolicy::kAvoidStragglers && step % kMixingPeriod != kMixingPeriod - 1) {
    places = PlacesInTime(LatenessAt(group, now));
  }
  return MatchAtRandom(std::move(places), count, Mixed(seed_, step));
}

std::vector<absl::Duration> PeerSelectionState::LatenessAt(const Group& group, absl::Time now) {
  std::vector<absl::Duration> lateness = group.lateness;
  if (group.decisions.empty()) return lateness;
  const Decision& last = group.decisions.rbegin()->second;
  for (size_t place = 0; place < lateness.size(); ++place) {
    if (last.has_asked[place]) continue;
    lateness[place] = std::max(lateness[place], now - last.asked_first);
  }
  return lateness;
}

}  // namespace pelton
