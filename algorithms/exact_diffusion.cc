// Exact diffusion, and D²: decentralized training that comes to the optimum of the mean of all
// ranks' losses with a constant learning rate. Plain means of neighbours' weights come to a point
// apart from it by how much the ranks' data differ; a correction that each rank keeps takes that
// away.
//
// State per bucket: the correction c of this rank, which begins at zero; over all ranks corrections
// add up to zero, up to rounding. With psi the weights after an optimizer's step and W the graph's:
//   phi = psi + c;  x = W phi;  c = x - psi
// which for SGD of rate e is the paper's phi_k = psi_k + x_(k-1) - psi_(k-1). With damped=true, the
// default, (I + W) / 2 takes the place of W; without it this is D². c is float32 for tensors of 16
// bits.
//
// The graph is the same in every step and symmetric. Without damping all eigenvalues of W have to
// be above -1/3, else it diverges: on a ring with an even number of ranks one is -1/3. Another
// number of ranks goes on with the mean of the corrections, which is 0.
//
// In a global round (global_interval) x is the mean of all ranks' phi and c stays what it is: as
// x - psi it would be taken from a mean that no other round takes, and ranks of a sparse graph part
// (on a ring of 8 with every fifth round global they do). That the method comes to the optimum is
// what tests find, no theorem of the papers.
//
// Steps: a send and a receive for each neighbour per bucket; in a global round an allreduce.
// Bytes: for a bucket of B bytes B to each neighbour; in a global round those of an allreduce.
// Result: ranks differ until they have come to the optimum.
// Source: Yuan et al., Exact Diffusion for Distributed Optimization and Learning, part I, arXiv
// 1702.05122, algorithm 1; Tang et al., D²: Decentralized Training over Decentralized Data, arXiv
// 1803.07068, algorithm 1.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/graph_algorithm.h"
#include "algorithms/stage/neighbor_mean.h"
#include "comm/graph/graph_sequence.h"
#include "comm/reduction/linear_combination.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// (I + W) / 2.
Graph DampedOf(const Graph& graph) {
  std::vector<double> own(graph.own().begin(), graph.own().end());
  for (double& weight : own) weight = 0.5 + 0.5 * weight;
  std::vector<Graph::Edge> edges(graph.edges().begin(), graph.edges().end());
  for (Graph::Edge& edge : edges) edge.weight *= 0.5;
  return GraphOf(std::move(own), std::move(edges));
}

// Whether all eigenvalues of a symmetric graph's weights are above -1/3: whether W + I/3 has a
// Cholesky factor.
bool IsAboveMinusOneThird(const Graph& graph) {
  constexpr double kRounding = 1e-9;
  const auto n = static_cast<size_t>(graph.size().value());
  std::vector<std::vector<double>> factor(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) factor[i][i] = graph.own()[i] + 1.0 / 3;
  for (const Graph::Edge& edge : graph.edges()) {
    factor[static_cast<size_t>(edge.destination)][static_cast<size_t>(edge.source)] = edge.weight;
  }
  // Without square roots: below the diagonal the factor L, on it D of L D Lᵀ.
  for (size_t k = 0; k < n; ++k) {
    if (factor[k][k] < kRounding) return false;
    for (size_t i = k + 1; i < n; ++i) {
      const double scale = factor[i][k] / factor[k][k];
      if (scale == 0) continue;
      for (size_t j = k + 1; j <= i; ++j) factor[i][j] -= scale * factor[j][k];
    }
  }
  return true;
}

// What the two stages of a bucket know of its round.
// Threads: its stages'. Owns: the weights before the exchange.
struct Correction {
  std::vector<std::byte> psi;
  StateBuffer buffer;
};

// The bucket, psi, becomes phi.
std::unique_ptr<Stage> MakeCorrectStage(const BucketLayout& layout,
                                        const std::shared_ptr<Correction>& correction) {
  const auto correct = [correction](const BucketRun& run, absl::Span<const StateBuffer> kept) {
    const DType dtype = run.layout().dtype;
    correction->buffer = kept[0];
    correction->psi.assign(run.flat(), run.flat() + run.flat_size_bytes());
    const Term terms[] = {{run.flat(), 1, dtype}, {kept[0].data, 1, kept[0].dtype}};
    LinearCombination(terms, {run.flat(), dtype}, run.layout().flat_count);
  };
  return MakeLocalStage(
      "correction", correct,
      {{.name = "correction", .dtype = FeedbackDType(layout.dtype), .count = layout.flat_count}});
}

// The correction becomes x - psi; the bucket, x, stays as it is.
std::unique_ptr<Stage> MakeNoteCorrectionStage(const std::shared_ptr<Correction>& correction) {
  return MakeLocalStage("next correction", [correction](const BucketRun& run, auto) {
    const DType dtype = run.layout().dtype;
    const Term terms[] = {{run.flat(), 1, dtype}, {correction->psi.data(), -1, dtype}};
    LinearCombination(terms, {correction->buffer.data, correction->buffer.dtype},
                      run.layout().flat_count);
  });
}

// Threads: as Algorithm. Owns: its options.
class ExactDiffusion final : public GraphAlgorithm {
 public:
  void BindOptions(OptionTable& table) override {
    GraphAlgorithm::BindOptions(table);
    table.Bool("damped", &damped_, "true: with (I + W) / 2; false: with W itself, which is D²");
  }
  std::string BytesSent() const override {
    return "B to each neighbour; in global rounds those of an allreduce of B bytes";
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    ASSIGN_OR_RETURN(Graph weights, WeightsFor(tiers.all->world_size()));
    NeighborMean::Over over = {std::make_unique<StaticGraph>(std::move(weights)),
                               graph().global_interval()};
    const auto correction = std::make_shared<Correction>();
    PipelineSpec spec;
    spec.stages.push_back(MakeCorrectStage(layout, correction));
    spec.stages.push_back(MakeNeighborMeanStage(*tiers.all, std::move(over), layout));
    spec.stages.push_back(MakeStageOfRounds(MakeNoteCorrectionStage(correction),
                                            WhichRounds::kOthers, graph().global_interval()));
    return spec;
  }

 private:
  absl::StatusOr<Graph> WeightsFor(WorldSize size) const {
    ASSIGN_OR_RETURN(Graph weights, graph().StaticSymmetric(size));
    if (damped_) return DampedOf(weights);
    if (IsAboveMinusOneThird(weights)) return weights;
    return absl::InvalidArgumentError(absl::StrCat(
        "option damped is 'false', but the graph of option graph has on ", size.value(),
        " ranks an eigenvalue that is not above -1/3, so that exact "
        "diffusion would diverge; leave it damped, or take another graph"));
  }

  bool damped_ = true;
};

REGISTER_ALGORITHM(exact_diffusion,
                   "neighbours' means of the weights, corrected so that all come to the optimum",
                   ExactDiffusion);

}  // namespace
}  // namespace pelton
