// Ranks of float32 tensors, whole: what the tests of the algorithms that exchange weights hold
// against references in plain loops.
#ifndef PELTON_ALGORITHMS_TEST_WORLD_H_
#define PELTON_ALGORITHMS_TEST_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/algorithm.h"
#include "algorithms/test_ranks.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"

namespace pelton {

// A rank's tensors, by slot.
using Values = std::vector<std::vector<float>>;

// Threads: one. Owns: the ranks.
class TestWorld {
 public:
  // All tensors are of float32.
  explicit TestWorld(const TestRanksOptions& options)
      : tensors_(options.tensors), ranks_(options) {}

  int32_t size() const { return ranks_.world_size(); }
  ModelRounds& rounds(int32_t rank) { return ranks_.rounds(rank); }
  const Plan& plan() { return rounds(0).plan(); }
  SimExecutor& executor() { return ranks_.executor(); }
  absl::Status Replan(const std::vector<SlotId>& order) { return ranks_.Replan(order); }
  // Units: bytes; of all buckets' flat parts, and of what has left any rank so far.
  uint64_t BucketBytes();
  uint64_t SentBytes() { return ranks_.SentBytes(); }

  // The initial model, the same on all ranks.
  void Prime(const Values& values);
  // One round, with `values[rank]` in the buckets; by rank, what is there after it. It must
  // succeed.
  std::vector<Values> Round(const std::vector<Values>& values);
  // One buffer of one rank's state, by slot: "ring exchange/left". Empty where there is none.
  Values StateOf(int32_t rank, const std::string& key);

  // Different elements for every rank, tensor, place and round.
  static Values Ramp(const std::vector<TensorSpec>& tensors, int32_t rank, uint64_t round);

 private:
  Values ValuesOf(int32_t rank);

  const std::vector<TensorSpec> tensors_;
  TestRanks ranks_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_WORLD_H_
