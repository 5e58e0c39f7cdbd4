// Which two ranks exchange in a round, where ranks exchange in pairs.
#ifndef PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_
#define PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// A matching of a group's ranks for each step. Both ends must ask for the same step; then each is
// the other's peer. Steps count from 0.
// Threads: any. Owns: what its subclass says.
class PeerSource {
 public:
  virtual ~PeerSource() = default;

  // The peer of the rank that this source speaks for; that rank itself where it sits the step out;
  // nothing where the answer is not known here, which says nothing about the other ranks. Asked for
  // steps that never decrease. Blocks: never.
  virtual std::optional<Rank> PeerAt(uint64_t step) = 0;
  // `step` will be asked for soon: time to find out. Blocks: never.
  virtual void Prefetch(uint64_t step) {}
};

// Pairs ranks so that no rank waits for a rank that has not come.
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
  // nothing yet. The code that made the matchmaker makes the scheduler that asked look again when
  // that changes. Blocks: never. Errors: there will be no answer; names rank, round and why.
  virtual absl::StatusOr<std::optional<Rank>> Answer() = 0;
};

// With whom a rank averages in a step, and by which weights: one rank's part of a graph, or of one
// after another: those of comm/graph, a graph's own one-peer sequence (OnePeerOf), and so every
// iterator of BlueFog's topology_util. Steps count from 0.
// Threads: one at a time. Owns: the graphs.
class GraphNeighbors {
 public:
  GraphNeighbors(std::unique_ptr<GraphSequence> graphs, Rank rank)
      : graphs_(std::move(graphs)), rank_(rank) {}
  // This rank's own weight, its sources and its destinations, with theirs. The ranks' answers say
  // the same of each edge in a step, whatever step another rank is in. Blocks: never.
  Neighborhood NeighborsAt(uint64_t step);

 private:
  const std::unique_ptr<GraphSequence> graphs_;
  const Rank rank_;
  uint64_t step_ = 0;  // of the graph that was made last
  std::optional<Neighborhood> last_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_PEER_SOURCE_H_
