// The matchings that one job's ranks have asked for.
#ifndef PELTON_COMM_CONTROL_PEER_SELECTION_STATE_H_
#define PELTON_COMM_CONTROL_PEER_SELECTION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/matching.h"
#include "core/base/ids.h"

namespace pelton {

// A state machine: the first rank of a group that asks for a step has the matching decided, every
// other gets the same one. Groups are told apart by their communicators, because the steps of each
// model are its own. Steps long over are forgotten, as are groups that nobody asked for in a long
// time.
// Threads: one at a time. Owns: what it has decided and measured.
class PeerSelectionState {
 public:
  static constexpr size_t kStepsKept = 16;
  static constexpr size_t kGroupsKept = 256;

  // `seed` is of the random choices.
  PeerSelectionState(WorldSize world_size, uint64_t seed)
      : seed_(seed), round_trips_(static_cast<size_t>(world_size.value())) {}

  // What `rank` has measured on its heartbeat stream.
  void SetRoundTrip(Rank rank, absl::Duration round_trip) {
    round_trips_[static_cast<size_t>(rank.value())] = round_trip;
  }

  // By place in `request.members`. Errors: InvalidArgument: members that are not ranks of the job,
  // each once, `rank` among them; a policy that has no matchings; OutOfRange: a step that is
  // forgotten, names those that are kept.
  absl::StatusOr<Matching> Select(Rank rank, const SelectPeersRequest& request);

 private:
  // Threads: one at a time. Owns: the last decisions.
  struct Group {
    std::map<uint64_t, Matching> decisions;  // by step
    uint64_t last_use = 0;
  };
  using Key = std::tuple<CommunicatorId, std::vector<Rank>, PeerPolicy>;

  Group& Use(const Key& key);
  Matching Decide(const Key& key, uint64_t step) const;

  const uint64_t seed_;
  std::vector<absl::Duration> round_trips_;  // by rank
  std::map<Key, Group> groups_;
  uint64_t uses_ = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_PEER_SELECTION_STATE_H_
