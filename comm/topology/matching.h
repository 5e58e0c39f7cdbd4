// Matchings of a group's ranks that need more than a rank's own knowledge.
#ifndef PELTON_COMM_TOPOLOGY_MATCHING_H_
#define PELTON_COMM_TOPOLOGY_MATCHING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/ids.h"

namespace pelton {

// Who decides with whom a rank exchanges. The numbers are those of the wire.
enum class PeerPolicy : uint8_t {
  kRandomMatching = 1,   // pairs at random, anew in each step
  kLatencyAware = 2,     // ranks that are about as far from the coordinator
  kAvoidStragglers = 3,  // whoever is there; no matching of a step (Control::FindPeer)
};
absl::string_view NameOf(PeerPolicy policy);
// "random_matching, ...", for error messages.
absl::string_view PeerPolicyNames();
// Errors: InvalidArgument: lists the names there are.
absl::StatusOr<PeerPolicy> ParsePeerPolicy(absl::string_view name);

// By place in a group: the place of the peer, or a rank's own place if it sits out. Its own
// inverse.
using Matching = std::vector<int32_t>;

// Pairs `places` at random, from `seed`; all others of `count` sit out, and one of them where their
// number is odd. The same on every machine.
Matching MatchAtRandom(std::vector<int32_t> places, size_t count, uint64_t seed);

// Pairs neighbours in the order of `distances`, by place: in even steps the first and the second,
// the third and the fourth and so on; in odd steps the second and the third and so on, so that
// everybody's weights reach everybody in time.
Matching MatchAlong(absl::Span<const absl::Duration> distances, uint64_t step);

// One-peer exchange by a rule that every rank computes for itself.

// Who a rank is, among how many.
struct Seat {
  Rank rank;
  WorldSize world_size{1};
};

// The peer of `seat.rank` at `step`. With h = n / 2 and n even, rank r of the lower half meets
// h + (step + r) mod h of the upper half: after h steps each of the lower has met each of the upper
// half. With n odd, r meets (step - r) mod n; one rank meets itself and sits the step out: after n
// steps each has met every other once, and sat out once. Alone, it sits out always.
// Source: even n: Bagua's shift_one.
Rank ShiftOnePeer(Seat seat, uint64_t step);

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_MATCHING_H_
