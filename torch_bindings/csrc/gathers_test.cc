// Gathers of parts of any length, among ranks that share this process.
#include "torch_bindings/csrc/gathers.h"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/lane/lane.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/pipeline/weight_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/c10d/call.h"
#include "torch_bindings/csrc/outcome.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Table = std::shared_ptr<const WeightTable>;

constexpr int kRanks = 3;
constexpr int32_t kTag = 5;

// Rows of `rank`, all of them alike.
at::Tensor Rows(int64_t rows, int rank, int64_t columns = 2) {
  return torch::full({rows, columns}, static_cast<float>(rank));
}
Call NewCall() { return {"gather", Call::Use::kMoved}; }

// Threads: the test's and those of the lanes. Owns: all ranks.
class GathersTest : public ::testing::Test {
 protected:
  GathersTest() {
    auto communicators = *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(kRanks)));
    for (auto& communicator : communicators) {
      lanes_.push_back(lane::Lane::Create(std::move(communicator)));
    }
  }
  ~GathersTest() override {
    for (const auto& lane : lanes_) lane->Stop();
  }

  lane::JobHandle Begin(size_t rank, Call& call) {
    return lanes_[rank]->Enqueue(call.Take(absl::Seconds(60)));
  }
  absl::Status End(size_t rank, const lane::JobHandle& job) {
    lanes_[rank]->Wait(job, absl::InfiniteFuture());
    return job->status();
  }
  // One job on each rank.
  void RunAll(std::vector<Call>& calls) {
    std::vector<lane::JobHandle> jobs;
    for (size_t rank = 0; rank < calls.size(); ++rank) jobs.push_back(Begin(rank, calls[rank]));
    for (size_t rank = 0; rank < jobs.size(); ++rank) {
      const absl::Status status = End(rank, jobs[rank]);
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  SimFabric fabric_{WorldSize(kRanks)};
  std::vector<std::shared_ptr<lane::Lane>> lanes_;
};

// Threads: as its base. Owns: what each rank has got.
class RankGatherTest : public GathersTest {
 protected:
  void Gather(const Tensors& inputs) {
    std::vector<std::unique_ptr<RankGather>> gathers;
    std::vector<Call> shapes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const RankGather::Place place{rank, kRanks, kNoBucket, std::nullopt};
      gathers.push_back(std::make_unique<RankGather>(place, inputs[static_cast<size_t>(rank)]));
      shapes.push_back(NewCall());
      shapes.back().Launch(gathers.back()->Shapes());
    }
    RunAll(shapes);
    std::vector<Call> parts;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      parts.push_back(NewCall());
      std::vector<lane::Job::Launch> launches = gathers[rank]->Parts(outcomes_[rank]);
      launches_.push_back(launches.size());
      for (lane::Job::Launch& launch : launches) parts.back().Launch(std::move(launch));
    }
    RunAll(parts);
  }

  std::vector<Outcome> outcomes_{kRanks};
  std::vector<size_t> launches_;
};

TEST_F(RankGatherTest, PartsFollowEachOtherByRankWhateverTheirLengths) {
  const Tensors inputs = {Rows(1, 0), Rows(0, 1), Rows(3, 2)};
  Gather(inputs);
  for (const Outcome& outcome : outcomes_) {
    EXPECT_TRUE(outcome.failure.ok()) << outcome.failure;
    EXPECT_TRUE(outcome.result.equal(torch::cat(inputs)));
  }
  EXPECT_THAT(launches_, ElementsAre(2, 2, 2)) << "nothing is sent of an empty part";
}

TEST_F(RankGatherTest, PartsOfOneLengthTakeOneOperation) {
  const Tensors inputs = {Rows(2, 0), Rows(2, 1), Rows(2, 2)};
  Gather(inputs);
  for (const Outcome& outcome : outcomes_) EXPECT_TRUE(outcome.result.equal(torch::cat(inputs)));
  EXPECT_THAT(launches_, ElementsAre(1, 1, 1));
}

TEST_F(RankGatherTest, OfNothingThereIsAResultAndNoOperation) {
  Gather({Rows(0, 0), Rows(0, 1), Rows(0, 2)});
  EXPECT_THAT(launches_, ElementsAre(0, 0, 0));
  EXPECT_EQ(outcomes_[1].result.sizes(), at::IntArrayRef({0, 2}));
}

TEST_F(RankGatherTest, AllRanksSeeTheSameFirstDifference) {
  Gather({Rows(1, 0), Rows(1, 1, 3), Rows(1, 2).to(at::kDouble)});
  for (const Outcome& outcome : outcomes_) {
    EXPECT_EQ(outcome.failure.ToString(),
              "INVALID_ARGUMENT: allgather: tensor: is Float [1, 2] on rank 0 and Float [1, 3] on "
              "rank 1; all but the first dimension must be the same");
  }
  EXPECT_THAT(launches_, ElementsAre(0, 0, 0)) << "a rank would wait for the others";
}

// Threads: as its base. Owns: the gathers, and what each rank has got.
class NeighborGatherTest : public GathersTest {
 protected:
  static Table TableOf(const std::vector<int>& sources, const std::vector<int>& destinations) {
    Neighborhood neighborhood;
    for (int rank : sources) neighborhood.sources.push_back({Rank(rank), 1});
    for (int rank : destinations) neighborhood.destinations.push_back({Rank(rank), 1});
    return *WeightTable::Create(std::move(neighborhood));
  }
  // Each rank sends to the next one.
  static std::vector<Table> Ring() {
    return {TableOf({2}, {1}), TableOf({0}, {2}), TableOf({1}, {0})};
  }
  static std::vector<Table> All() {
    return {TableOf({1, 2}, {1, 2}), TableOf({0, 2}, {0, 2}), TableOf({0, 1}, {0, 1})};
  }

  void TellShapes(const std::vector<Table>& tables, const Tensors& inputs,
                  const std::vector<uint64_t>& names = {0, 0, 0}) {
    std::vector<Call> calls;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const NeighborGather::Place place{static_cast<int>(rank), kTag,
                                        100 + static_cast<int32_t>(rank)};
      gathers_.push_back(
          std::make_unique<NeighborGather>(place, names[rank], tables[rank], inputs[rank]));
      calls.push_back(NewCall());
      for (lane::Job::Launch& launch : gathers_.back()->Shapes()) {
        calls.back().Launch(std::move(launch));
      }
    }
    RunAll(calls);
  }
  void Gather(const std::vector<Table>& tables, const Tensors& inputs,
              const std::vector<uint64_t>& names = {0, 0, 0}) {
    TellShapes(tables, inputs, names);
    std::vector<Call> calls;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      calls.push_back(NewCall());
      follows_.push_back(gathers_[rank]->Parts(calls.back(), outcomes_[rank]));
    }
    RunAll(calls);
  }

  std::vector<std::unique_ptr<NeighborGather>> gathers_;
  std::vector<Outcome> outcomes_{kRanks};
  std::vector<bool> follows_;
};

TEST_F(NeighborGatherTest, PartsFollowEachOtherBySourceWithTheirLengths) {
  const Tensors inputs = {Rows(1, 0), Rows(4, 1), Rows(2, 2)};
  Gather(All(), inputs);
  EXPECT_TRUE(outcomes_[0].result.equal(torch::cat({inputs[1], inputs[2]})));
  EXPECT_TRUE(outcomes_[1].result.equal(torch::cat({inputs[0], inputs[2]})));
  EXPECT_TRUE(outcomes_[2].result.equal(torch::cat({inputs[0], inputs[1]})));
  EXPECT_THAT(outcomes_[1].lengths, ElementsAre(1, 2));
  for (const Outcome& outcome : outcomes_) EXPECT_TRUE(outcome.failure.ok()) << outcome.failure;
}

TEST_F(NeighborGatherTest, AnEdgeWithoutElementsMovesNone) {
  Gather(Ring(), {Rows(0, 0), Rows(0, 1), Rows(2, 2)});
  EXPECT_THAT(follows_, ElementsAre(true, false, true)) << "rank 1 gets none and has none";
  EXPECT_THAT(outcomes_[1].lengths, ElementsAre(0));
  EXPECT_EQ(outcomes_[1].result.sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(outcomes_[0].result.equal(Rows(2, 2)));
}

TEST_F(NeighborGatherTest, BothEndsKnowWhatDoesNotFitAndTheOtherEdgesMove) {
  Gather(Ring(), {Rows(1, 0), Rows(2, 1), Rows(3, 2, /*columns=*/4)});
  EXPECT_EQ(outcomes_[0].failure.ToString(),
            "INVALID_ARGUMENT: neighbor_allgather: tensor: is Float [1, 2] on rank 0 and Float "
            "[3, 4] on rank 2; all but the first dimension must be the same");
  EXPECT_THAT(outcomes_[1].failure.ToString(),
              AllOf(HasSubstr("[2, 2] on rank 1"), HasSubstr("[3, 4] on rank 2")));
  EXPECT_THAT(outcomes_[2].failure.ToString(),
              AllOf(HasSubstr("[3, 4] on rank 2"), HasSubstr("[2, 2] on rank 1")));
  EXPECT_TRUE(outcomes_[1].result.equal(Rows(1, 0)));
  EXPECT_THAT(outcomes_[2].lengths, ElementsAre(0));
}

TEST_F(NeighborGatherTest, OperationsOfDifferentNamesDoNotMeet) {
  Gather(Ring(), {Rows(1, 0), Rows(1, 1), Rows(1, 2)}, {7, 7, 8});
  EXPECT_THAT(outcomes_[0].failure.ToString(), HasSubstr("name: ranks 0 and 2 call it by"));
  EXPECT_THAT(outcomes_[1].failure.ToString(), HasSubstr("name: ranks 1 and 2 call it by"));
}

TEST_F(NeighborGatherTest, AnOperationWithoutTagsGetsTheEdgesThatFitInBytes) {
  TellShapes(All(), {Rows(1, 0), Rows(4, 1), Rows(2, 2, /*columns=*/3)});
  const Table edges = gathers_[0]->Edges(outcomes_[0]);
  ASSERT_EQ(edges->sources().size(), 1U);
  EXPECT_EQ(edges->sources()[0].rank, Rank(1));
  EXPECT_EQ(edges->CountOf(0, 0), 4U * 2 * sizeof(float));
  EXPECT_EQ(edges->destinations().size(), 1U);
  EXPECT_THAT(outcomes_[0].lengths, ElementsAre(4, 0));
  EXPECT_EQ(outcomes_[0].result.sizes(), at::IntArrayRef({4, 2}));
  EXPECT_THAT(outcomes_[0].failure.ToString(), HasSubstr("[2, 3] on rank 2"));
}

TEST_F(NeighborGatherTest, ElementsMayFollowInAnotherOrderThanTheirShapes) {
  const Table table = TableOf({1}, {1});
  const Table peers = TableOf({0}, {0});
  std::vector<std::unique_ptr<NeighborGather>> gathers;  // a and b of rank 0, a and b of rank 1
  std::vector<lane::JobHandle> jobs;
  for (size_t i = 0; i < 4; ++i) {
    const size_t rank = i / 2;
    gathers.push_back(std::make_unique<NeighborGather>(
        NeighborGather::Place{static_cast<int>(rank), kTag, 100 + static_cast<int32_t>(i)}, 0,
        rank == 0 ? table : peers, Rows(2, static_cast<int>(i))));
    Call call = NewCall();
    for (lane::Job::Launch& launch : gathers.back()->Shapes()) call.Launch(std::move(launch));
    jobs.push_back(Begin(rank, call));
  }
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(End(i / 2, jobs[i]).ok());
  std::vector<Outcome> outcomes(4);
  const std::vector<size_t> order = {0, 1, 3, 2};
  jobs.clear();
  for (const size_t i : order) {
    Call call = NewCall();
    call.SetSend();
    ASSERT_TRUE(gathers[i]->Parts(call, outcomes[i]));
    jobs.push_back(Begin(i / 2, call));
  }
  for (size_t n = 0; n < 4; ++n) ASSERT_TRUE(End(order[n] / 2, jobs[n]).ok());
  EXPECT_TRUE(outcomes[0].result.equal(Rows(2, 2)));
  EXPECT_TRUE(outcomes[1].result.equal(Rows(2, 3)));
  EXPECT_TRUE(outcomes[2].result.equal(Rows(2, 0)));
  EXPECT_TRUE(outcomes[3].result.equal(Rows(2, 1)));
}

TEST_F(NeighborGatherTest, TheInputLivesUntilItsElementsHaveMoved) {
  bool is_freed = false;
  std::vector<float> memory(4, 9);
  Tensors inputs = {Rows(1, 0), Rows(1, 1), Rows(1, 2)};
  inputs[0] = torch::from_blob(
      memory.data(), {2, 2}, [&is_freed](void*) { is_freed = true; }, at::kFloat);
  TellShapes(Ring(), inputs);
  std::vector<Call> calls;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    calls.push_back(NewCall());
    EXPECT_TRUE(gathers_[rank]->Parts(calls.back(), outcomes_[rank]));
  }
  gathers_.clear();  // with the first job
  inputs.clear();
  EXPECT_FALSE(is_freed);
  RunAll(calls);
  EXPECT_TRUE(outcomes_[1].result.equal(torch::full({2, 2}, 9.0F)));
}

}  // namespace
}  // namespace pelton::torch_bindings
