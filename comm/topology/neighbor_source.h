// With whom a rank averages in a step, and by which weights.
#ifndef PELTON_COMM_TOPOLOGY_NEIGHBOR_SOURCE_H_
#define PELTON_COMM_TOPOLOGY_NEIGHBOR_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "comm/graph/graph_sequence.h"
#include "comm/topology/peer_source.h"
#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"

namespace pelton {

// What one rank does in each step. The ranks' sources say the same of each edge in a step, whatever
// step another rank is in. Steps count from 0.
// Threads: one at a time. Owns: what its subclass says.
class NeighborSource {
 public:
  virtual ~NeighborSource() = default;

  // This rank's own weight, its sources and its destinations, with theirs; nothing where the answer
  // is not known here, which says nothing about the other ranks. Asked for steps that never
  // decrease. Blocks: never.
  virtual std::optional<Neighborhood> NeighborsAt(uint64_t step) = 0;
  // `step` will be asked for soon: time to find out. Blocks: never.
  virtual void Prefetch(uint64_t) {}
};

// By a graph, or by one after another: those of comm/graph, a graph's own one-peer sequence
// (OnePeerOf), and so every iterator of BlueFog's topology_util.
// Threads: one at a time. Owns: the graphs.
class GraphNeighbors final : public NeighborSource {
 public:
  GraphNeighbors(std::unique_ptr<GraphSequence> graphs, Rank rank)
      : graphs_(std::move(graphs)), rank_(rank) {}
  std::optional<Neighborhood> NeighborsAt(uint64_t step) override;

 private:
  const std::unique_ptr<GraphSequence> graphs_;
  const Rank rank_;
  uint64_t step_ = 0;  // of the graph that was made last
  std::optional<Neighborhood> last_;
};

// Pairs: both ends of one take the mean. Who sits a step out keeps what it has.
// Threads: as the peers' source. Owns: nothing; the source outlives it.
class PairNeighbors final : public NeighborSource {
 public:
  PairNeighbors(PeerSource& peers, Rank rank) : peers_(peers), rank_(rank) {}
  std::optional<Neighborhood> NeighborsAt(uint64_t step) override;
  void Prefetch(uint64_t step) override { peers_.Prefetch(step); }

 private:
  PeerSource& peers_;
  const Rank rank_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TOPOLOGY_NEIGHBOR_SOURCE_H_
