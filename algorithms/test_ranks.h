// A world of simulated ranks that run an algorithm, in one thread and virtual time: for tests.
#ifndef PELTON_ALGORITHMS_TEST_RANKS_H_
#define PELTON_ALGORITHMS_TEST_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "algorithms/algorithm.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/topology/peer_source.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/test_windows.h"
#include "core/actor/sim_executor.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"

namespace pelton {

// Threads: a value. Owns: its text and lists.
struct TestRanksOptions {
  std::string algorithm;
  AlgorithmOptions options;
  // Ranks of each host; a flat algorithm knows only their sum.
  std::vector<int32_t> host_sizes = {1};
  std::vector<TensorSpec> tensors;
  uint64_t bucket_size_bytes = limits::kDefaultBucketBytes;
  uint64_t seed = 1;
  // Whether the seed chooses latencies, stalled ranks and the order and times of the marks; else
  // every rank marks in registration order, at once, and no wire takes time.
  bool is_disturbed = false;
  bool commits_state = false;  // as ModelRoundsOptions::commits_state
  // Chooses peers, by rank (of the leaders where the algorithm is hierarchical); may be empty.
  std::vector<PeerSource*> peers = {};
  std::vector<Matchmaker*> matchmakers = {};
};

// Threads: one. Owns: executor, fabric, communicators, algorithm objects and rounds of all ranks.
class TestRanks {
 public:
  explicit TestRanks(const TestRanksOptions& options);
  ~TestRanks();
  TestRanks(const TestRanks&) = delete;
  TestRanks& operator=(const TestRanks&) = delete;

  // Writes what `rank` has for a slot; false if it does not use it in this round.
  using Produce = absl::FunctionRef<bool(int32_t rank, SlotId slot, std::byte* data)>;
  // A round on all ranks, each of which has all its tensors marked before any waits. Errors: the
  // first rank's.
  absl::Status RunRound(Produce produce);
  // All ranks move to a plan in `order`.
  absl::Status Replan(const std::vector<SlotId>& order);

  int32_t world_size() const { return static_cast<int32_t>(ranks_.size()); }
  SimExecutor& executor() { return executor_; }
  ModelRounds& rounds(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]->rounds; }
  // Ends the communication of `rank` when it launches its operation of this number from now on,
  // from 1. More than it launches: never.
  void EndAtOperation(int32_t rank, uint64_t number);
  // The operations that `rank` has launched so far.
  uint64_t OperationCount(int32_t rank) const;
  // The elements that `rank` holds for a slot after the last round.
  std::vector<std::byte> ResultOf(int32_t rank, SlotId slot);
  // Everything that has left any rank so far. Units: bytes.
  uint64_t SentBytes() { return fabric_.TotalBytesSent(); }

 private:
  class EndingRunner;
  struct OneRank {
    std::unique_ptr<Algorithm> algorithm;
    Tiers tiers;
    // Of the next plan, of an algorithm that uses windows: made before the rounds ask for them,
    // because making a window waits for the other ranks.
    std::vector<Pipeline> pipelines;
    std::unique_ptr<EndingRunner> runner;
    std::unique_ptr<ModelRounds> rounds;
  };
  struct Mark {
    int32_t rank;
    SlotId slot;
  };

  void OpenTiers(const std::vector<int32_t>& host_sizes);
  std::vector<Communicator*> Open(const Group& group);
  Plan PlanOf(const TestRanksOptions& options);
  void AddRounds(int32_t rank, const TestRanksOptions& options);
  // On a thread for each rank.
  void MakePipelines(const Plan& plan);
  void Disturb(std::vector<Mark>& marks);

  SimExecutor executor_;
  SimFabric fabric_;
  TestWindows windows_;
  const bool is_disturbed_;
  uint32_t last_communicator_ = 0;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<OneRank>> ranks_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_RANKS_H_
