// Who exchanges with whom where ranks do so in pairs, and nobody waits for who has not come.
#ifndef PELTON_COMM_TOPOLOGY_MATCHMAKER_H_
#define PELTON_COMM_TOPOLOGY_MATCHMAKER_H_

#include <optional>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace pelton {

// Finds a peer for each round of one rank among the ranks that look for one at the same time, in
// whichever rounds of their own they are. Each is the other's peer then, and neither may do without
// the other: a rank that has asked takes part in what is decided.
// Threads: any. Owns: what its subclass says.
class Matchmaker {
 public:
  virtual ~Matchmaker() = default;

  // Begins to look for a peer for `round`. Rounds rise; one is asked for at a time. Blocks: never.
  virtual void Ask(Round round) = 0;
  // For the round that was asked for last: the peer, the rank itself where it goes on alone, or
  // nothing yet. Whoever made the matchmaker sees to it that the asking scheduler looks again when
  // that changes. Blocks: never. Errors: there will be no answer; names rank, round and why.
  virtual absl::StatusOr<std::optional<Rank>> Answer() = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_MATCHMAKER_H_
