#include "comm/collectives/neighbor_program.h"

#include <algorithm>
#include <cstddef>

namespace pelton {
namespace {

using Direction = Transfer::Direction;

// Where a table's factors lie, see FactorsOf. Units: elements. Threads: a value. Owns: nothing.
struct FactorLayout {
  explicit FactorLayout(const WeightTable& table) : sources(table.sources().size()) {}

  Piece Arriving(size_t source) const { return {Buffer::kFactors, 1 + sources + source, 1}; }
  Piece Leaving(size_t destination) const {
    return {Buffer::kFactors, 1 + 2 * sources + destination, 1};
  }
  // All sources', as this rank gives them, and as they arrive.
  Piece AllOwn() const { return {Buffer::kFactors, 1, sources}; }
  Piece AllArriving() const { return {Buffer::kFactors, 1 + sources, sources}; }

  uint64_t sources;
};

// Threads: one. Owns: what it has written so far.
class Writer {
 public:
  Writer(const NeighborShape& shape, const WeightTable& table)
      : shape_(shape), table_(table), layout_(table) {
    uint64_t place = 0;
    for (size_t i = 0; i < table.sources().size(); ++i) {
      const uint64_t count = combines() ? shape.count : table.CountOf(i, shape.count);
      arriving_.push_back({combines() ? Buffer::kScratch : Buffer::kTarget, place, count});
      place += count;
    }
    if (combines()) program_.scratch_count = place;
    program_.lanes.resize(1);
    program_.lanes[0].resize(1);
  }

  Program Write() {
    const int32_t n = shape_.world_size.value();
    const int32_t rank = shape_.rank.value();
    for (size_t i = 0; i < table_.destinations().size(); ++i) {
      const int32_t peer = table_.destinations()[i].rank.value();
      edges_.push_back({(peer - rank + n) % n, Direction::kSend, i});
    }
    for (size_t i = 0; i < table_.sources().size(); ++i) {
      const int32_t peer = table_.sources()[i].rank.value();
      edges_.push_back({(rank - peer + n) % n, Direction::kRecv, i});
    }
    std::stable_sort(edges_.begin(), edges_.end(),
                     [](const Edge& a, const Edge& b) { return a.distance < b.distance; });
    for (const Edge& edge : edges_) AddMessages(edge);
    if (combines() && shape_.count > 0) AddCombination();
    return std::move(program_);
  }

 private:
  struct Edge {
    int32_t distance;
    Direction direction;
    size_t index;  // in its list
  };

  bool combines() const { return shape_.kind == OperationKind::kNeighborAllReduce; }

  void AddMessages(const Edge& edge) {
    std::vector<Transfer>& transfers = program_.lanes[0][0].transfers;
    const bool sends = edge.direction == Direction::kSend;
    const std::vector<Neighbor>& neighbors = sends ? table_.destinations() : table_.sources();
    const int32_t peer = neighbors[edge.index].rank.value();
    const Piece tensor = sends ? Piece{Buffer::kSource, 0, shape_.count} : arriving_[edge.index];
    transfers.push_back({edge.direction, peer, tensor});
    if (!table_.sends_weights()) return;
    transfers.push_back(
        {edge.direction, peer, sends ? layout_.Leaving(edge.index) : layout_.Arriving(edge.index)});
  }

  void AddCombination() {
    std::vector<LocalStep>& steps = program_.lanes[0][0].local;
    if (table_.sends_weights() && !arriving_.empty()) {
      steps.push_back({LocalStep::Kind::kScale, {layout_.AllArriving()}, layout_.AllOwn()});
    }
    std::vector<Piece> sources = {{Buffer::kSource, 0, shape_.count}};
    sources.insert(sources.end(), arriving_.begin(), arriving_.end());
    steps.push_back(
        {LocalStep::Kind::kCombine, std::move(sources), {Buffer::kTarget, 0, shape_.count}});
  }

  const NeighborShape shape_;
  const WeightTable& table_;
  const FactorLayout layout_;
  std::vector<Piece> arriving_;  // by source
  std::vector<Edge> edges_;
  Program program_;
};

}  // namespace

Program NeighborProgram(const NeighborShape& shape, const WeightTable& table) {
  return Writer(shape, table).Write();
}

std::vector<double> FactorsOf(const WeightTable& table) {
  std::vector<double> factors = {table.own()};
  for (const Neighbor& source : table.sources()) factors.push_back(source.weight);
  factors.resize(factors.size() + table.sources().size(), 1.0);
  for (const Neighbor& destination : table.destinations()) factors.push_back(destination.weight);
  return factors;
}

}  // namespace pelton
