// All ranks of a model in one thread, over the simulated transport in virtual time: what the tests
// of the algorithms hold against references in plain loops.
#ifndef PELTON_ALGORITHMS_TEST_WORLD_H_
#define PELTON_ALGORITHMS_TEST_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/topology/peer_source.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/bucket/model_rounds.h"
#include "core/bucket/tensor_spec.h"

namespace pelton {

struct TestWorldOptions {
  std::string algorithm;
  AlgorithmOptions algorithm_options;
  std::vector<int32_t> host_sizes;  // ranks of each host, in rank order
  std::vector<TensorSpec> tensors;
  uint64_t bucket_size_bytes = 600;
  uint64_t seed = 1;
  // Random latencies, marks in an order of each rank's own, and ranks that stall.
  bool disturbed = false;
  // By rank (of the leaders where the algorithm is hierarchical); may be empty.
  std::vector<PeerSource*> peers;
};

// A rank's tensors, by slot. Tests of other dtypes than float32 read the bytes through
// ModelRounds.
using Values = std::vector<std::vector<float>>;

// Threads: one. Owns: the world of one seed.
class TestWorld {
 public:
  explicit TestWorld(const TestWorldOptions& options);
  ~TestWorld();
  TestWorld(const TestWorld&) = delete;
  TestWorld& operator=(const TestWorld&) = delete;

  int32_t size() const { return static_cast<int32_t>(rounds_.size()); }
  ModelRounds& rounds(int32_t rank) { return *rounds_[static_cast<size_t>(rank)]; }
  const Plan& plan() { return rounds(0).plan(); }
  // Of all buckets' flat parts. Units: bytes.
  uint64_t BucketBytes();
  SimFabric& fabric() { return fabric_; }
  SimExecutor& executor() { return executor_; }
  const Algorithm& algorithm() const { return *algorithms_.front(); }

  // The initial model, the same on all ranks.
  void Prime(const Values& values);
  // One round, with `values[rank]` in the buckets; by rank, what is there after it. All ranks must
  // succeed.
  std::vector<Values> Round(const std::vector<Values>& values);
  // A round with whatever the buckets hold; by rank.
  std::vector<absl::Status> Round();

  Values ValuesOf(int32_t rank);
  void Write(int32_t rank, const Values& values);
  // One buffer of one rank's state, by slot: "pair exchange 0/left". Empty where there is none.
  Values StateOf(int32_t rank, const std::string& key);

  // The float32 elements of `tensors`, different for every rank, tensor, place and round.
  static Values Ramp(const std::vector<TensorSpec>& tensors, int32_t rank, uint64_t round);

 private:
  struct Mark {
    int32_t rank;
    int32_t slot;
  };

  SimOptions NetworkOf(const TestWorldOptions& options);
  void OpenTiers(const TestWorldOptions& options);
  void AddRank(int32_t rank, const TestWorldOptions& options);
  std::vector<Mark> MarksOfARound();

  const bool disturbed_;
  const std::vector<TensorSpec> tensors_;
  SimExecutor executor_;
  SimFabric fabric_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  // of all tiers
  std::vector<Tiers> tiers_;                                  // by rank
  std::vector<std::unique_ptr<TieredRunner>> runners_;        // by rank
  std::vector<std::unique_ptr<Algorithm>> algorithms_;        // by rank
  std::vector<std::unique_ptr<ModelRounds>> rounds_;          // by rank
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_WORLD_H_
