#include "comm/topology/matching.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

constexpr std::array kPolicies = {PeerPolicy::kRandomMatching, PeerPolicy::kLatencyAware,
                                  PeerPolicy::kAvoidStragglers};

Matching NobodyMatched(size_t count) {
  Matching matching(count);
  std::iota(matching.begin(), matching.end(), 0);
  return matching;
}

// Pairs order[first] with the next, and so on.
Matching PairInOrder(absl::Span<const int32_t> order, size_t first, size_t count) {
  Matching matching = NobodyMatched(count);
  for (size_t i = first; i + 1 < order.size(); i += 2) {
    matching[static_cast<size_t>(order[i])] = order[i + 1];
    matching[static_cast<size_t>(order[i + 1])] = order[i];
  }
  return matching;
}

}  // namespace

absl::string_view NameOf(PeerPolicy policy) {
  switch (policy) {
    case PeerPolicy::kRandomMatching:
      return "random_matching";
    case PeerPolicy::kLatencyAware:
      return "latency_aware";
    case PeerPolicy::kAvoidStragglers:
      return "avoid_stragglers";
  }
  return "unknown policy";
}

absl::string_view PeerPolicyNames() { return "random_matching, latency_aware, avoid_stragglers"; }

absl::StatusOr<PeerPolicy> ParsePeerPolicy(absl::string_view name) {
  for (PeerPolicy policy : kPolicies) {
    if (NameOf(policy) == name) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("peer policy '", name, "' is not one of: ", PeerPolicyNames()));
}

Matching MatchAtRandom(std::vector<int32_t> places, size_t count, uint64_t seed) {
  // std::shuffle may differ between libraries; the engine does not.
  std::mt19937_64 random(seed);
  for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random() % i]);
  return PairInOrder(places, 0, count);
}

Matching MatchAlong(absl::Span<const absl::Duration> distances, uint64_t step) {
  std::vector<int32_t> order = NobodyMatched(distances.size());
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return distances[static_cast<size_t>(a)] < distances[static_cast<size_t>(b)];
  });
  // Two ranks have one pairing only.
  const size_t first = order.size() > 2 ? step % 2 : 0;
  return PairInOrder(order, first, order.size());
}

namespace {

// (a - b) mod n, never negative. Requires: a and b are below n.
uint64_t Difference(uint64_t a, uint64_t b, uint64_t n) { return (a + n - b) % n; }

}  // namespace

Rank ShiftOnePeer(Seat seat, uint64_t step) {
  const auto size = static_cast<uint64_t>(seat.world_size.value());
  const auto rank = static_cast<uint64_t>(seat.rank.value());
  uint64_t peer = 0;
  if (size % 2 == 1) {
    peer = Difference(step % size, rank, size);
  } else if (const uint64_t half = size / 2; rank < half) {
    peer = (step % half + rank) % half + half;
  } else {
    peer = Difference(rank - half, step % half, half);
  }
  return Rank(static_cast<int32_t>(peer));
}

}  // namespace pelton
