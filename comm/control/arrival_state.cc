#include "comm/control/arrival_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A rank may come this much earlier or later than the median of its intervals says.
constexpr double kEarliest = 0.75;
constexpr double kLatest = 2;

size_t PlaceOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

absl::Duration MedianOf(const std::deque<absl::Duration>& intervals) {
  std::vector<absl::Duration> sorted(intervals.begin(), intervals.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() - 1) / 2];
}

// Other peers met since `peer`; as many as are kept if that was longer ago, or never.
size_t AgeOf(const std::vector<int32_t>& peers, int32_t peer) {
  const auto found = std::find(peers.begin(), peers.end(), peer);
  return found == peers.end() ? ArrivalState::kPeersKept
                              : static_cast<size_t>(found - peers.begin());
}

void Remember(std::vector<int32_t>& peers, int32_t peer) {
  std::erase(peers, peer);
  peers.insert(peers.begin(), peer);
  if (peers.size() > ArrivalState::kPeersKept) peers.pop_back();
}

}  // namespace

absl::Status ArrivalState::Check(Rank rank, const FindPeerRequest& request) const {
  RETURN_IF_ERROR(Annotate(
      CheckGroup(pelton::Group{request.members, Generation(1)}, world_size_, rank), "members"));
  const auto found = groups_.find(request.group);
  if (found == groups_.end()) return absl::OkStatus();
  const Group& group = found->second;
  if (group.ranks != request.members) {
    return absl::InvalidArgumentError(absl::StrCat("members: are rank ", ListRanks(request.members),
                                                   ", but communicator ", request.group.value(),
                                                   " is that of rank ", ListRanks(group.ranks)));
  }
  const Member& member = group.members[PlaceOf(group.ranks, rank)];
  if (member.asked_at.has_value() && request.round < member.asked_round) {
    return absl::OutOfRangeError(absl::StrCat("round: is ", request.round, ", but rank ",
                                              rank.value(), " has asked for round ",
                                              member.asked_round, " already"));
  }
  return absl::OkStatus();
}

absl::Status ArrivalState::MakeRoom() {
  if (groups_.size() < kGroupsKept) return absl::OkStatus();
  auto oldest = groups_.end();
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    if (!group->second.waiting.empty()) continue;
    if (oldest == groups_.end() || group->second.last_use < oldest->second.last_use) oldest = group;
  }
  if (oldest == groups_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("group: ", groups_.size(), " communicators' ranks wait for peers already"));
  }
  groups_.erase(oldest);
  return absl::OkStatus();
}

void ArrivalState::Ask(const Call& call, Rank rank, const FindPeerRequest& request,
                       Outbox* outbox) {
  absl::Status valid = Check(rank, request);
  const bool is_new = !groups_.contains(request.group);
  if (valid.ok() && is_new) valid = MakeRoom();
  if (!valid.ok()) return outbox->Answer(call.id, std::move(valid));
  now_ = call.now;
  Group& group = groups_[request.group];
  if (is_new) {
    group.ranks = request.members;
    group.members.resize(request.members.size());
    group.began = call.now;
  }
  group.last_use = ++uses_;
  const size_t place = PlaceOf(group.ranks, rank);
  Member& member = group.members[place];
  const auto before = std::find_if(
      group.waiting.begin(), group.waiting.end(),
      [place](const Waiting& one) { return one.place == static_cast<int32_t>(place); });
  if (before != group.waiting.end()) {
    outbox->Answer(before->call, absl::AbortedError(absl::StrCat("rank ", rank.value(),
                                                                 " has asked for a peer again")));
    Forget(*before);
    group.waiting.erase(before);
  }
  BeginRound(member, request.round, call.now);
  Waiting waiting{static_cast<int32_t>(place), call.id,
                  std::min(member.patient_until, call.deadline)};
  group_of_[call.id] = request.group;
  deadlines_.Add(call.id, waiting.until);
  if (member.decision.has_value()) return Answer(waiting, *member.decision, outbox);
  group.waiting.push_back(waiting);
  Settle(group, call.now, outbox);
}

void ArrivalState::BeginRound(Member& member, uint64_t round, absl::Time now) {
  if (member.asked_at.has_value() && round == member.asked_round) return;  // a repeated call
  if (member.asked_at.has_value()) {
    member.intervals.push_back(now - *member.asked_at);
    if (member.intervals.size() > kIntervalsKept) member.intervals.pop_front();
  }
  member.asked_at = member.seen_at = now;
  member.asked_round = round;
  member.decision.reset();
  member.patient_until =
      now + (member.intervals.empty()
                 ? kFirstPatience
                 : std::clamp(MedianOf(member.intervals) / 2, kLeastPatience, kMostPatience));
}

void ArrivalState::Settle(Group& group, absl::Time now, Outbox* outbox) {
  // Nobody settles for whom it has met just now while there is another pair.
  while (SettleOne(group, true, now, outbox) || SettleOne(group, false, now, outbox)) {
  }
}

bool ArrivalState::SettleOne(Group& group, bool only_fresh, absl::Time now, Outbox* outbox) {
  for (size_t index = 0; index < group.waiting.size(); ++index) {
    const std::optional<size_t> partner = PartnerOf(group, index, now);
    if (!partner.has_value()) continue;
    if (only_fresh && !AreFresh(group, group.waiting[index].place, group.waiting[*partner].place)) {
      continue;
    }
    Decide(group, index, *partner, outbox);
    return true;
  }
  return false;
}

std::optional<size_t> ArrivalState::PartnerOf(const Group& group, size_t index,
                                              absl::Time now) const {
  const Waiting& waiting = group.waiting[index];
  const std::vector<int32_t>& peers = group.members[static_cast<size_t>(waiting.place)].peers;
  std::optional<size_t> best;
  const auto score = [&](size_t other) {
    const int32_t place = group.waiting[other].place;
    return std::pair(AreFresh(group, waiting.place, place), AgeOf(peers, place));
  };
  for (size_t other = 0; other < group.waiting.size(); ++other) {
    if (other == index) continue;
    if (!best.has_value() || score(other) > score(*best)) best = other;
  }
  if (best.has_value() && score(*best).first) return best;
  if (MayCome(group, waiting, true, now)) return std::nullopt;
  if (best.has_value()) return best;
  if (MayCome(group, waiting, false, now)) return std::nullopt;
  return index;
}

bool ArrivalState::AreFresh(const Group& group, int32_t one, int32_t other) {
  const size_t stale = std::min((group.ranks.size() - 1) / 2, kPeersKept);
  const auto age = [&](int32_t of, int32_t peer) {
    return AgeOf(group.members[static_cast<size_t>(of)].peers, peer);
  };
  return one != other && age(one, other) >= stale && age(other, one) >= stale;
}

bool ArrivalState::MayCome(const Group& group, const Waiting& waiting, bool fresh,
                           absl::Time now) const {
  if (now >= waiting.until) return false;
  for (size_t place = 0; place < group.members.size(); ++place) {
    const auto other = static_cast<int32_t>(place);
    const bool waits = std::any_of(group.waiting.begin(), group.waiting.end(),
                                   [other](const Waiting& one) { return one.place == other; });
    if (waits || (fresh && !AreFresh(group, waiting.place, other))) continue;
    if (MayCome(group, place, waiting.until, now)) return true;
  }
  return false;
}

bool ArrivalState::MayCome(const Group& group, size_t place, absl::Time by, absl::Time now) const {
  if (left_.contains(group.ranks[place])) return false;
  const Member& member = group.members[place];
  const absl::Time seen = std::max(member.seen_at, group.began);
  if (member.intervals.empty()) return now < seen + kFirstPatience;
  const absl::Duration interval = MedianOf(member.intervals);
  const absl::Duration latest = std::max(kLatest * interval, kLeastPatience);
  return *member.asked_at + kEarliest * interval <= by && now < seen + latest;
}

void ArrivalState::Decide(Group& group, size_t index, size_t partner, Outbox* outbox) {
  const uint64_t number = ++group.last_match;
  const Waiting one = group.waiting[index];
  const Waiting other = group.waiting[partner];
  const auto conclude = [&](const Waiting& end, int32_t peer) {
    Member& member = group.members[static_cast<size_t>(end.place)];
    member.seen_at = now_;
    if (peer != end.place) Remember(member.peers, peer);
    member.decision = PeerMatch{Rank(peer), number};
    std::erase_if(group.waiting, [&](const Waiting& each) { return each.call == end.call; });
    Answer(end, *member.decision, outbox);
  };
  conclude(one, other.place);
  if (index != partner) conclude(other, one.place);
}

void ArrivalState::Answer(const Waiting& waiting, const PeerMatch& match, Outbox* outbox) {
  Forget(waiting);
  outbox->Answer(waiting.call, match);
}

void ArrivalState::Forget(const Waiting& waiting) {
  group_of_.erase(waiting.call);
  deadlines_.Remove(waiting.call, waiting.until);
}

void ArrivalState::Cancel(uint64_t call) {
  const auto found = group_of_.find(call);
  if (found == group_of_.end()) return;
  std::vector<Waiting>& waiting = groups_.at(found->second).waiting;
  const auto cancelled = std::find_if(waiting.begin(), waiting.end(),
                                      [call](const Waiting& one) { return one.call == call; });
  Forget(Waiting(*cancelled));
  waiting.erase(cancelled);
}

void ArrivalState::Leave(Rank rank, Outbox* outbox) {
  left_.insert(rank);
  for (auto& entry : groups_) {
    Group& group = entry.second;
    const auto waits = std::find_if(
        group.waiting.begin(), group.waiting.end(),
        [&](const Waiting& one) { return group.ranks[static_cast<size_t>(one.place)] == rank; });
    if (waits != group.waiting.end()) {
      outbox->Answer(waits->call,
                     absl::AbortedError(absl::StrCat("rank ", rank.value(), " has left the job")));
      Forget(*waits);
      group.waiting.erase(waits);
    }
    Settle(group, now_, outbox);
  }
}

void ArrivalState::Expire(absl::Time now, Outbox* outbox) {
  while (const std::optional<uint64_t> call = deadlines_.Due(now)) {
    now_ = now;
    Settle(groups_.at(group_of_.at(*call)), now, outbox);
  }
}

void ArrivalState::Fail(const absl::Status& reason, Outbox* outbox) {
  for (auto& [id, group] : groups_) {
    for (const Waiting& waiting : std::exchange(group.waiting, {})) {
      const Member& member = group.members[static_cast<size_t>(waiting.place)];
      outbox->Answer(waiting.call, Annotate(reason, absl::StrCat("waiting for a peer for round ",
                                                                 member.asked_round)));
      Forget(waiting);
    }
  }
}

}  // namespace pelton
