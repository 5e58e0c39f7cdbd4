// Where training comes to, on a strongly convex problem of which every rank has another part, in
// float64: to the optimum of the mean of all losses where theory says so, else to the algorithm's
// own fixed point, which is computed apart as the solution of linear equations.
//
// The loss of rank i is (1/2) xᵀ A_i x - c_iᵀ x, the optimizer SGD with a constant rate.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "comm/graph/graph_sequence.h"
#include "core/base/check.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr size_t kDimension = 3;
constexpr double kRate = 0.1;
constexpr double kTolerance = 1e-6;
constexpr int kSteps = 2400;

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // by row

Matrix Zeros(size_t size) { return Matrix(size, Vector(size)); }
Matrix Identity(size_t size) {
  Matrix identity = Zeros(size);
  for (size_t i = 0; i < size; ++i) identity[i][i] = 1;
  return identity;
}

Vector Times(const Matrix& a, const Vector& x) {
  Vector product(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < x.size(); ++k) product[i] += a[i][k] * x[k];
  }
  return product;
}

// x with a x = b, by elimination with the largest pivot.
Vector Solved(Matrix a, Vector b) {
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k; i < n; ++i) pivot = std::abs(a[i][k]) > std::abs(a[pivot][k]) ? i : pivot;
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    PELTON_CHECK(std::abs(a[k][k]) > 1e-12) << "the equations have no one solution";
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

// The part of a rank. Threads: a value. Owns: its numbers.
struct Part {
  Matrix a;
  Vector c;

  // Eigenvalues from 1 to about 3.
  static Part Of(size_t rank) {
    Part part = {Identity(kDimension), Vector(kDimension)};
    Vector direction(kDimension);
    for (size_t i = 0; i < kDimension; ++i) {
      direction[i] = std::sin(1.7 * static_cast<double>(rank * kDimension + i) + 0.3);
      part.c[i] = 5 * std::cos(2.3 * static_cast<double>(rank * kDimension + i));
    }
    for (size_t i = 0; i < kDimension; ++i) {
      for (size_t j = 0; j < kDimension; ++j) part.a[i][j] += direction[i] * direction[j];
    }
    return part;
  }

  Vector Gradient(const Vector& x) const {
    Vector gradient = Times(a, x);
    for (size_t i = 0; i < kDimension; ++i) gradient[i] -= c[i];
    return gradient;
  }
};

std::vector<Part> Parts(size_t size) {
  std::vector<Part> parts;
  for (size_t rank = 0; rank < size; ++rank) parts.push_back(Part::Of(rank));
  return parts;
}

// Threads: a value. Owns: its texts.
struct Training {
  std::string algorithm;
  AlgorithmOptions options;
  int32_t size = 4;
  double momentum = 0;  // of the optimizers
};

// All ranks' training. Threads: one. Owns: weights and ranks.
class World {
 public:
  explicit World(const Training& training)
      : momentum_(training.momentum),
        schedule_((*MakeAlgorithm(training.algorithm, training.options))->schedule()),
        ranks_(OptionsOf(training)),
        parts_(Parts(static_cast<size_t>(training.size))),
        weights_(parts_.size(), Vector(kDimension, 0.5)),
        velocities_(parts_.size(), Vector(kDimension)) {
    for (int32_t rank = 0; rank < training.size; ++rank) {
      std::memcpy(ranks_.rounds(rank).DataOf(SlotId(0)), weights_[0].data(), kBytes);
      PELTON_CHECK_OK(ranks_.rounds(rank).Prime(absl::InfiniteFuture()));
    }
  }

  const std::vector<Vector>& weights() const { return weights_; }

  void Step(uint64_t step) {
    std::vector<Vector> gradients;
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      gradients.push_back(parts_[rank].Gradient(weights_[rank]));
    }
    if (schedule_.source == Source::kGradients) gradients = Round(gradients);
    // Means of the weights that the gradients were taken at; then these are applied.
    if (schedule_.trigger == TriggerKind::kInForward) weights_ = Round(weights_);
    for (size_t rank = 0; rank < parts_.size(); ++rank) {
      for (size_t i = 0; i < kDimension; ++i) {
        double& velocity = velocities_[rank][i];
        velocity = momentum_ * velocity + gradients[rank][i];
        weights_[rank][i] -= kRate * velocity;
      }
    }
    const bool is_due =
        step >= schedule_.first_step && (step - schedule_.first_step) % schedule_.interval == 0;
    if (schedule_.trigger == TriggerKind::kAfterStep && is_due) weights_ = Round(weights_);
  }

 private:
  static constexpr size_t kBytes = kDimension * sizeof(double);

  static TestRanksOptions OptionsOf(const Training& training) {
    TestRanksOptions options;
    options.algorithm = training.algorithm;
    options.options = training.options;
    options.host_sizes.assign(static_cast<size_t>(training.size), 1);
    options.tensors = {{"x", DType::kFloat64, kDimension, {}}};
    return options;
  }

  std::vector<Vector> Round(const std::vector<Vector>& tensors) {
    PELTON_CHECK_OK(ranks_.RunRound([&](int32_t rank, SlotId, std::byte* data) {
      std::memcpy(data, tensors[static_cast<size_t>(rank)].data(), kBytes);
      return true;
    }));
    std::vector<Vector> results(tensors.size(), Vector(kDimension));
    for (size_t rank = 0; rank < tensors.size(); ++rank) {
      const std::vector<std::byte> bytes = ranks_.ResultOf(static_cast<int32_t>(rank), SlotId(0));
      std::memcpy(results[rank].data(), bytes.data(), kBytes);
    }
    return results;
  }

  const double momentum_;
  const Schedule schedule_;
  TestRanks ranks_;
  const std::vector<Part> parts_;
  std::vector<Vector> weights_;
  std::vector<Vector> velocities_;
};

// By rank, after `steps` steps.
std::vector<Vector> Trained(const Training& training, int steps = kSteps) {
  World world(training);
  for (int step = 1; step <= steps; ++step) world.Step(static_cast<uint64_t>(step));
  return world.weights();
}

double Farthest(const std::vector<Vector>& ranks, const std::vector<Vector>& points) {
  double farthest = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t i = 0; i < kDimension; ++i) {
      const double distance = std::abs(ranks[rank][i] - points[rank][i]);
      farthest = distance <= farthest ? farthest : distance;  // NaN counts
    }
  }
  return farthest;
}

// Of the mean loss: (sum of A) x = sum of c; on every rank.
std::vector<Vector> Optimum(size_t size) {
  Matrix a = Zeros(kDimension);
  Vector c(kDimension);
  for (const Part& part : Parts(size)) {
    for (size_t i = 0; i < kDimension; ++i) {
      for (size_t j = 0; j < kDimension; ++j) a[i][j] += part.a[i][j];
      c[i] += part.c[i];
    }
  }
  return std::vector<Vector>(size, Solved(std::move(a), std::move(c)));
}

std::vector<Vector> ByRank(const Vector& stacked) {
  std::vector<Vector> ranks;
  for (size_t at = 0; at < stacked.size(); at += kDimension) {
    const auto begin = stacked.begin() + static_cast<std::ptrdiff_t>(at);
    ranks.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(kDimension));
  }
  return ranks;
}

// s with s_j = sum over i of mixing[j][i] (s_i - rate (A_i s_i / divisors_i - c_i)).
std::vector<Vector> FixedPointOf(const Matrix& mixing, const Vector& divisors) {
  const std::vector<Part> parts = Parts(mixing.size());
  Matrix a = Identity(mixing.size() * kDimension);
  Vector b(mixing.size() * kDimension);
  for (size_t j = 0; j < mixing.size(); ++j) {
    for (size_t i = 0; i < mixing.size(); ++i) {
      for (size_t row = 0; row < kDimension; ++row) {
        const size_t at = j * kDimension + row;
        b[at] += mixing[j][i] * kRate * parts[i].c[row];
        a[at][i * kDimension + row] -= mixing[j][i];
        for (size_t column = 0; column < kDimension; ++column) {
          a[at][i * kDimension + column] +=
              mixing[j][i] * kRate * parts[i].a[row][column] / divisors[i];
        }
      }
    }
  }
  return ByRank(Solved(std::move(a), std::move(b)));
}

// By destination, then source.
Matrix MixingOf(const std::string& name, int32_t size) {
  const Graph graph = (*MakeGraphs(name, WorldSize(size), {}))->At(0);
  Matrix mixing = Zeros(static_cast<size_t>(size));
  for (size_t rank = 0; rank < mixing.size(); ++rank) mixing[rank][rank] = graph.own()[rank];
  for (const Graph::Edge& edge : graph.edges()) {
    mixing[static_cast<size_t>(edge.destination)][static_cast<size_t>(edge.source)] = edge.weight;
  }
  return mixing;
}

// x with x = the mean over all ranks of where `interval` steps lead from x; on every rank.
std::vector<Vector> FixedPointOfLocalSteps(size_t size, int interval) {
  Matrix a = Identity(kDimension);
  Vector b(kDimension);
  for (const Part& part : Parts(size)) {
    const auto after = [&](Vector x) {
      for (int step = 0; step < interval; ++step) {
        const Vector gradient = part.Gradient(x);
        for (size_t i = 0; i < kDimension; ++i) x[i] -= kRate * gradient[i];
      }
      return x;
    };
    const Vector from_zero = after(Vector(kDimension));
    for (size_t column = 0; column < kDimension; ++column) {
      const Vector from_one = after(Identity(kDimension)[column]);
      for (size_t row = 0; row < kDimension; ++row) {
        a[row][column] -= (from_one[row] - from_zero[row]) / static_cast<double>(size);
      }
    }
    for (size_t row = 0; row < kDimension; ++row) {
      b[row] += from_zero[row] / static_cast<double>(size);
    }
  }
  return std::vector<Vector>(size, Solved(std::move(a), std::move(b)));
}

void ExpectReaches(const Training& training, const std::vector<Vector>& points) {
  EXPECT_LT(Farthest(Trained(training), points), kTolerance)
      << DescribeAlgorithm(training.algorithm, training.options) << " on " << training.size;
}

void ExpectReachesOptimum(const Training& training) {
  ExpectReaches(training, Optimum(static_cast<size_t>(training.size)));
}

TEST(ConvergenceTest, TheProblemIsOneThatRanksAloneOrNeighboursMeansMiss) {
  const std::vector<Vector> optimum = Optimum(4);
  EXPECT_GT(Farthest({Trained({"gradient_allreduce", {}, 1})[0]}, optimum), 0.1);
  EXPECT_GT(Farthest(FixedPointOf(MixingOf("ring", 4), Vector(4, 1)), optimum), 0.01);
  EXPECT_GT(Farthest(FixedPointOfLocalSteps(4, 4), optimum), 0.001);
}

TEST(ConvergenceTest, GradientAllReduceReachesTheOptimum) {
  for (const int32_t size : {1, 2, 3, 4, 8}) ExpectReachesOptimum({"gradient_allreduce", {}, size});
}

TEST(ConvergenceTest, ExactDiffusionReachesTheOptimumOnEverySymmetricGraph) {
  for (const int32_t size : {1, 2, 3, 4, 8}) {
    for (const char* graph :
         {"ring", "star", "mesh_grid", "symmetric_exponential", "fully_connected"}) {
      ExpectReachesOptimum({"exact_diffusion", {{"graph", graph}}, size});
    }
    for (const char* global_interval : {"1", "2", "5"}) {
      ExpectReachesOptimum(
          {"exact_diffusion", {{"graph", "ring"}, {"global_interval", global_interval}}, size});
    }
    ExpectReachesOptimum({"exact_diffusion", {{"graph", "star"}, {"damped", "false"}}, size});
  }
}

TEST(ConvergenceTest, GradientTrackingReachesTheOptimumOnDirectedAndChangingGraphs) {
  for (const int32_t size : {1, 2, 3, 4, 8}) {
    for (const char* graph : {"ring", "star", "exponential", "one_peer_exponential", "base",
                              "equi_dyn", "random_pairs"}) {
      ExpectReachesOptimum({"gradient_tracking", {{"graph", graph}}, size});
    }
    ExpectReachesOptimum(
        {"gradient_tracking", {{"graph", "ring"}, {"global_interval", "5"}}, size});
  }
  ExpectReachesOptimum({"gradient_tracking", {{"graph", "exponential"}}, 4, 0.5});
}

TEST(ConvergenceTest, PushDigingReachesTheOptimumWhereTheMeanIsNotKept) {
  for (const int32_t size : {1, 2, 3, 4, 8}) {
    for (const char* graph : {"star", "mesh_grid", "exponential", "equi_dyn"}) {
      ExpectReachesOptimum({"gradient_tracking", {{"graph", graph}, {"push", "true"}}, size});
    }
  }
}

TEST(ConvergenceTest, NeighboursMeansReachTheirFixedPoint) {
  const std::vector<Vector> point = FixedPointOf(MixingOf("ring", 4), Vector(4, 1));
  ExpectReaches({"slowmo", {{"base", "ring"}, {"interval", "1000000"}}}, point);
  // In it nothing moves, so that momentum has nothing to add.
  ExpectReaches({"quasi_global_momentum", {{"graph", "ring"}, {"momentum", "0.5"}}}, point);
}

TEST(ConvergenceTest, ChocoSgdReachesThatOfItsConsensusRateWithAnyCodec) {
  Matrix mixing = MixingOf("ring", 4);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) mixing[i][j] = 0.5 * mixing[i][j] + (i == j ? 0.5 : 0);
  }
  const std::vector<Vector> point = FixedPointOf(mixing, Vector(4, 1));
  for (const char* codec : {"min_max_uint8", "block_int4"}) {
    ExpectReaches({"choco_sgd", {{"codec", codec}, {"consensus_rate", "0.5"}}}, point);
  }
}

// What a rank gets in the long run of what all give is its share; it is not the same for all.
TEST(ConvergenceTest, PushSumReachesTheFixedPointOfItsShares) {
  Matrix mixing = MixingOf("star", 4);
  Vector shares(4, 1);
  for (size_t source = 0; source < 4; ++source) {
    for (size_t rank = 0; rank < 4; ++rank) {
      if (mixing[rank][source] != 0) mixing[rank][source] = source == 0 ? 0.25 : 0.5;
    }
  }
  for (int round = 0; round < 1000; ++round) shares = Times(mixing, shares);
  EXPECT_GT(shares[0], shares[1] + 0.1);
  std::vector<Vector> point = FixedPointOf(mixing, shares);
  for (size_t rank = 0; rank < 4; ++rank) {
    for (double& element : point[rank]) element /= shares[rank];
  }
  ExpectReaches({"push_sum", {{"graph", "star"}}}, point);
}

TEST(ConvergenceTest, LocalStepsReachTheirFixedPoint) {
  const std::vector<Vector> point = FixedPointOfLocalSteps(4, 4);
  ExpectReaches({"local_sgd", {{"interval", "4"}}}, point);
  ExpectReaches({"diloco", {{"interval", "4"}, {"outer_momentum", "0.5"}}}, point);
  ExpectReaches({"slowmo", {{"interval", "4"}, {"slow_momentum", "0.5"}}}, point);
}

// Of two ranks both always meet the other. Of more the pairs change, and no point stands still.
TEST(ConvergenceTest, NoLoCoOfTwoReachesThatOfLocalSteps) {
  ExpectReaches({"noloco", {{"interval", "4"}, {"outer_momentum", "0.25"}}, 2},
                FixedPointOfLocalSteps(2, 4));
}

TEST(ConvergenceTest, MeansBesideTheBackwardPassReachTheirFixedPoint) {
  // x_i = the mean of all x - rate (A_i x_i - c_i).
  const std::vector<Part> parts = Parts(4);
  Matrix a = Identity(4 * kDimension);
  Vector b(4 * kDimension);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t row = 0; row < kDimension; ++row) {
      const size_t at = i * kDimension + row;
      b[at] = kRate * parts[i].c[row];
      for (size_t j = 0; j < 4; ++j) a[at][j * kDimension + row] -= 0.25;
      for (size_t column = 0; column < kDimension; ++column) {
        a[at][i * kDimension + column] += kRate * parts[i].a[row][column];
      }
    }
  }
  ExpectReaches({"decentralized", {}}, ByRank(Solved(std::move(a), std::move(b))));
}

}  // namespace
}  // namespace pelton
