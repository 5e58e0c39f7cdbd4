#include "benchmarks/graphs/consensus_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "comm/collectives/neighbor_communicator.h"
#include "comm/graph/graph_sequence.h"
#include "comm/group.h"
#include "comm/neighbors.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/pipeline/weight_table.h"

namespace pelton {
namespace {

// Moves when it is told to.
struct VirtualClock final : Clock {
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

// In [0, 1).
double ElementOf(uint64_t seed, size_t index) {
  return static_cast<double>(SplitMix(seed, index) >> 11) * 0x1p-53;
}

// All ranks' elements, rank after rank. Threads: one. Owns: the elements.
class Elements {
 public:
  explicit Elements(const ConsensusOptions& options)
      : count_(options.count),
        values_(options.count * static_cast<size_t>(options.ranks.value())),
        mean_(options.count) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = ElementOf(options.seed, i);
      mean_[i % count_] += values_[i];
    }
    for (double& mean : mean_) mean /= options.ranks.value();
  }

  absl::Span<double> Of(int32_t rank) {
    return absl::MakeSpan(values_).subspan(static_cast<size_t>(rank) * count_, count_);
  }
  // The sum over a rank's elements of (x - mean)^2; `mean` is that of the first elements.
  double SquaresOf(int32_t rank) {
    const absl::Span<const double> values = Of(rank);
    double squares = 0;
    for (size_t i = 0; i < count_; ++i) squares += (values[i] - mean_[i]) * (values[i] - mean_[i]);
    return squares;
  }
  double Squares() {
    double squares = 0;
    for (size_t r = 0; r * count_ < values_.size(); ++r) {
      squares += SquaresOf(static_cast<int32_t>(r));
    }
    return squares;
  }
  // x becomes W^T x.
  void Multiply(const Graph& graph) {
    std::vector<double> product(values_.size());
    for (int32_t r = 0; r < graph.size().value(); ++r) {
      Add(graph.own()[static_cast<size_t>(r)], r, product, r);
    }
    for (const Graph::Edge& edge : graph.edges()) {
      Add(edge.weight, edge.source, product, edge.destination);
    }
    values_ = std::move(product);
  }

 private:
  void Add(double weight, int32_t from, std::vector<double>& product, int32_t to) {
    const absl::Span<const double> source = Of(from);
    double* const target = product.data() + static_cast<size_t>(to) * count_;
    for (size_t i = 0; i < count_; ++i) target[i] += weight * source[i];
  }

  const size_t count_;
  std::vector<double> values_;
  std::vector<double> mean_;
};

// The weight tables of all ranks, step by step: Graph::Of looks at all edges for each rank.
// Threads: one. Owns: the graphs and the tables of the steps that are still to come.
class StepTables {
 public:
  using Tables = std::vector<std::shared_ptr<const WeightTable>>;  // by rank

  explicit StepTables(std::unique_ptr<GraphSequence> graphs) : graphs_(std::move(graphs)) {}

  // `first`: no rank asks for an earlier step any more.
  absl::StatusOr<std::shared_ptr<const WeightTable>> At(uint64_t step, Rank rank, uint64_t first) {
    const uint64_t period = graphs_->period();
    const uint64_t key = period > 0 ? step % period : step;
    if (period == 0) tables_.erase(tables_.begin(), tables_.lower_bound(first));
    auto found = tables_.find(key);
    if (found == tables_.end()) {
      ASSIGN_OR_RETURN(Tables made, TablesOf(graphs_->At(key)));
      found = tables_.emplace(key, std::move(made)).first;
    }
    return found->second[static_cast<size_t>(rank.value())];
  }

 private:
  static absl::StatusOr<Tables> TablesOf(const Graph& graph) {
    std::vector<Neighborhood> all(graph.own().size());
    for (size_t r = 0; r < all.size(); ++r) all[r].own = graph.own()[r];
    for (const Graph::Edge& edge : graph.edges()) {  // by source, then by destination
      const double weight = edge.weight;
      all[static_cast<size_t>(edge.source)].destinations.push_back(
          {Rank(edge.destination), weight});
      all[static_cast<size_t>(edge.destination)].sources.push_back({Rank(edge.source), weight});
    }
    Tables tables;
    for (Neighborhood& one : all) {
      ASSIGN_OR_RETURN(tables.emplace_back(), WeightTable::Create(std::move(one)));
    }
    return tables;
  }

  const std::unique_ptr<GraphSequence> graphs_;
  std::map<uint64_t, Tables> tables_;  // by step within the period
};

// Threads: one. Owns: the world.
class ConsensusWorld {
 public:
  ConsensusWorld(const ConsensusOptions& options, std::unique_ptr<GraphSequence> graphs)
      : options_(options),
        tables_(std::move(graphs)),
        elements_(options),
        fabric_(options.ranks, {.link = options.link, .clock = &clock_}),
        ranks_(static_cast<size_t>(options.ranks.value())),
        squares_(options.rounds),
        completed_(options.rounds),
        result_{std::vector<ConsensusRound>(options.rounds)} {}

  absl::StatusOr<ConsensusResult> Run() {
    RETURN_IF_ERROR(Open());
    const double before = elements_.Squares();
    for (RankState& rank : ranks_) RETURN_IF_ERROR(Launch(rank));
    while (first_ < options_.rounds) {
      ASSIGN_OR_RETURN(const bool moved, StepAll());
      if (!moved) RETURN_IF_ERROR(MoveClock());
    }
    for (size_t i = 0; i < squares_.size(); ++i) {
      result_.rounds[i].error = std::sqrt(squares_[i] / before);
    }
    result_.sent_bytes = fabric_.TotalBytesSent();
    return std::move(result_);
  }

 private:
  struct RankState {
    std::unique_ptr<Communicator> communicator;
    uint64_t round = 0;  // complete so many
    Completion completion;
  };

  absl::Status Open() {
    Group world;
    for (int32_t r = 0; r < options_.ranks.value(); ++r) world.members.emplace_back(r);
    ASSIGN_OR_RETURN(auto wires, fabric_.OpenAll(CommunicatorId(1), world));
    for (size_t r = 0; r < wires.size(); ++r) {
      ranks_[r].communicator = MakeNeighborCommunicator(std::move(wires[r]));
    }
    return absl::OkStatus();
  }

  absl::Status Launch(RankState& rank) {
    if (rank.round == options_.rounds) return absl::OkStatus();
    const Rank number = rank.communicator->rank();
    ASSIGN_OR_RETURN(const auto table, tables_.At(rank.round, number, first_));
    const absl::Span<double> values = elements_.Of(number.value());
    const Tensor tensor{values.data(), values.size(), DType::kFloat64};
    ASSIGN_OR_RETURN(rank.completion,
                     NeighborAllReduce(*rank.communicator, tensor, tensor, *table));
    return absl::OkStatus();
  }

  // Whether any rank got further.
  absl::StatusOr<bool> StepAll() {
    bool any_moved = false;
    for (RankState& rank : ranks_) {
      if (rank.round == options_.rounds) continue;
      ASSIGN_OR_RETURN(const bool moved, Step(rank));
      any_moved |= moved;
    }
    return any_moved;
  }

  absl::StatusOr<bool> Step(RankState& rank) {
    const bool moved = rank.communicator->Progress();
    const OperationRunner::State state = rank.communicator->Query(rank.completion);
    if (!state.done) return moved;
    RETURN_IF_ERROR(state.status);
    Complete(rank);
    RETURN_IF_ERROR(Launch(rank));
    return true;
  }

  void Complete(RankState& rank) {
    const uint64_t round = rank.round++;
    squares_[round] += elements_.SquaresOf(rank.communicator->rank().value());
    result_.rounds[round].time = clock_.now - absl::UnixEpoch();
    if (++completed_[round] == ranks_.size()) first_ = round + 1;
  }

  absl::Status MoveClock() {
    const absl::Time next = fabric_.NextEventTime();
    if (next == absl::InfiniteFuture()) {
      return absl::InternalError(absl::StrCat("round ", first_ + 1, " of '", options_.graph,
                                              "': nothing is left to happen, and ranks wait"));
    }
    clock_.now = std::max(clock_.now, next);
    fabric_.RunDue(clock_.now);
    return absl::OkStatus();
  }

  const ConsensusOptions& options_;
  VirtualClock clock_;
  StepTables tables_;
  Elements elements_;
  SimFabric fabric_;
  std::vector<RankState> ranks_;   // go before the fabric and the elements, which they use
  std::vector<double> squares_;    // by round
  std::vector<size_t> completed_;  // by round: how many ranks have
  uint64_t first_ = 0;             // that some rank has not completed
  ConsensusResult result_;
};

void ComputeExpected(const ConsensusOptions& options, const GraphSequence& graphs,
                     ConsensusResult& result) {
  Elements elements(options);
  const double before = elements.Squares();
  for (uint64_t step = 0; step < options.rounds; ++step) {
    elements.Multiply(graphs.At(step));
    result.rounds[step].expected = std::sqrt(elements.Squares() / before);
  }
}

}  // namespace

absl::StatusOr<ConsensusResult> SimulateConsensus(const ConsensusOptions& options,
                                                  bool computes_expected) {
  ASSIGN_OR_RETURN(auto graphs, MakeGraphs(options.graph, options.ranks, options.graph_options));
  ASSIGN_OR_RETURN(ConsensusResult result, ConsensusWorld(options, std::move(graphs)).Run());
  if (!computes_expected) return result;
  ASSIGN_OR_RETURN(graphs, MakeGraphs(options.graph, options.ranks, options.graph_options));
  ComputeExpected(options, *graphs, result);
  return result;
}

}  // namespace pelton
