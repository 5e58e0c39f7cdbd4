// Simulated ranks whose rounds no other rank shares, in the order that a test likes.
#ifndef PELTON_ALGORITHMS_TEST_ALONE_WORLD_H_
#define PELTON_ALGORITHMS_TEST_ALONE_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/communicator.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/test_windows.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/actor/sim_executor.h"
#include "core/base/moving_deadline.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"

namespace pelton {

// Threads: a value. Owns: its texts.
struct AloneCase {
  std::string algorithm;
  AlgorithmOptions options;
  int32_t size = 1;
  uint64_t seed = 1;
  DType dtype = DType::kFloat64;
};

// Two tensors, each a bucket of its own, begin as whole numbers below 1000. What a round gives is
// added to them, as backend/averaging_loop.h does. The simulation's seed says which stages run
// first of those that are under way.
// Threads: one; the pipelines are made by one for each rank. Owns: everything of the ranks.
class AloneWorld {
 public:
  static constexpr uint64_t kCounts[] = {5, 3};
  static constexpr size_t kElements = kCounts[0] + kCounts[1];

  explicit AloneWorld(const AloneCase& one);
  ~AloneWorld();
  AloneWorld(const AloneWorld&) = delete;
  AloneWorld& operator=(const AloneWorld&) = delete;

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  uint64_t Uniform(uint64_t count) { return executor_.Uniform(count); }
  int32_t AnyRank() { return static_cast<int32_t>(Uniform(static_cast<uint64_t>(size()))); }
  // Of a rank, tensor after tensor.
  std::vector<double>& weights(int32_t rank) { return At(rank).weights; }

  // A round of one rank, whose result is added to its weights.
  absl::Status Run(int32_t rank);
  // Its two halves. Between them the other ranks may do what they like, and this one may train.
  absl::Status Begin(int32_t rank, bool only_collects = false);
  absl::Status Finish(int32_t rank);
  bool is_under_way(int32_t rank) { return At(rank).is_under_way; }
  // In any order, one at a time.
  void RunAny(int count);
  // The halves of rounds in any order.
  void RunInterleaved(int halves);
  // The last round of all ranks.
  void CollectAll();

  // Of all ranks, by element.
  std::vector<double> Sums();
  // The largest distance of an element from the mean of `ranks`, or of all.
  double Spread(const std::vector<int32_t>& ranks);
  double Spread();
  // What lies in windows with an element more than their bucket has.
  // Threads: a value. Owns: its lists.
  struct Held {
    std::vector<double> elements;  // tensor after tensor
    std::vector<double> last;      // that one element, by tensor
  };
  // Of the windows whose name begins so, those of one rank: its own tensors. And of all ranks, with
  // all slots, added up; while no round is under way.
  Held TensorsOf(int32_t rank, const std::string& name);
  Held InWindows(const std::string& name);

 private:
  // Threads: as WindowSource. Owns: nothing.
  class SeenSource final : public WindowSource {
   public:
    SeenSource(WindowSource& source, std::vector<Window*>& seen) : source_(source), seen_(seen) {}
    absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) override;
    MovingDeadline deadline() const override { return source_.deadline(); }

   private:
    WindowSource& source_;
    std::vector<Window*>& seen_;
  };
  struct OneRank {
    std::vector<double> weights;
    std::vector<Window*> windows;  // in the order of the buckets
    std::unique_ptr<SeenSource> source;
    std::unique_ptr<Algorithm> algorithm;
    std::vector<Pipeline> pipelines;
    std::unique_ptr<ModelRounds> rounds;
    bool is_under_way = false;
  };

  OneRank& At(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }
  Plan MakePlan() const;
  void MakePipelines(int32_t rank, const AloneCase& one);
  void MakeRounds(int32_t rank);
  // The windows' elements, by bucket.
  std::vector<std::vector<double>> BucketsOf(int32_t rank, const std::string& name, bool slots);
  Held HeldOf(const std::vector<std::vector<double>>& buckets) const;
  double* WeightsOf(int32_t rank, int32_t slot) {
    return weights(rank).data() + (slot == 0 ? 0 : kCounts[0]);
  }

  const DType dtype_;
  SimExecutor executor_;
  SimFabric fabric_;
  TestWindows windows_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<OneRank> ranks_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_ALONE_WORLD_H_
