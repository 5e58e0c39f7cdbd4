// A model's rounds over a link against the same rounds in process, and what becomes of them when
// one side goes. Runs with ranks and daemons as threads and, as linked_rounds_sim_test, under a
// simulation.
#include "backend/link/linked_rounds.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/link/test_linked_ranks.h"
#include "backend/link/test_linked_training.h"
#include "backend/test_ranks.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

absl::Status AddStates(ModelRounds& rounds, RankLog& log) {
  ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds.SaveStates(Soon()));
  for (const SlotState& state : states) {
    log.push_back(absl::StrCat(state.key, " of ", state.slot.value(), " from ", state.begin_count));
    log.emplace_back(reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size());
  }
  return absl::OkStatus();
}

// Buckets follow rank 0's order from then on.
absl::Status ChangePlan(ModelRounds& rounds, RankLog& log) {
  ASSIGN_OR_RETURN(const std::vector<SlotId> order, rounds.AgreeOnOrder(Soon()));
  for (SlotId slot : order) log.push_back(absl::StrCat("slot ", slot.value()));
  return rounds.Replan(order, Soon());
}

// The same on all ranks, as Prime wants it.
absl::Status Prime(ModelRounds& rounds) {
  for (size_t i = 0; i < std::size(kTrainedCounts); ++i) {
    const auto slot = static_cast<int32_t>(i);
    if (!IsStandalone(rounds, slot)) Fill(rounds, slot, 0, 0);
  }
  return rounds.Prime(Soon());
}

constexpr int kRounds = 5;

// Results, order and the stages' state.
absl::StatusOr<RankLog> Train(ModelRounds& rounds, int32_t rank) {
  RankLog log;
  OwnMemory own;
  RETURN_IF_ERROR(Prime(rounds));
  for (int round = 0; round < kRounds; ++round) {
    RETURN_IF_ERROR(Produce(rounds, rank, round, &own));
    RETURN_IF_ERROR(rounds.WaitRound(Soon()));
    AddResults(rounds, log);
    RETURN_IF_ERROR(AddStates(rounds, log));
    if (round == 1) RETURN_IF_ERROR(ChangePlan(rounds, log));
  }
  ASSIGN_OR_RETURN(const std::vector<SlotState> states, rounds.SaveStates(Soon()));
  RETURN_IF_ERROR(rounds.LoadStates(states, Soon()));
  RETURN_IF_ERROR(AddStates(rounds, log));
  log.push_back(absl::StrCat("round ", rounds.round().value()));
  return log;
}

// With which messages are encoded, and matrices compressed, also on one host and in the first
// round.
AlgorithmOptions OptionsOf(const std::string& algorithm) {
  AlgorithmOptions options;
  const AlgorithmDescription description = *DescriptionOf(algorithm);
  for (const OptionDescription& option : description.options) {
    if (option.name == "hierarchical") options[option.name] = "false";
    if (option.name == "start_round") options[option.name] = "1";
  }
  return options;
}

LinkedWorld WorldOf(int world_size, const std::string& algorithm,
                    uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  ModelOptions model = TrainedModel(algorithm, standalone_bytes);
  model.algorithm_options = OptionsOf(algorithm);
  return {.world_size = world_size, .model = std::move(model), .tensors = TrainedTensors()};
}

LinkedWorld FailingWorld(int world_size, uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  LinkedWorld world = WorldOf(world_size, "gradient_allreduce", standalone_bytes);
  world.job_fails = true;
  return world;
}

class LinkedAlgorithmTest : public ::testing::TestWithParam<std::string> {};

// The same training over a link and in process.
void ExpectEqual(const std::string& algorithm, uint64_t standalone_bytes) {
  LinkedWorld world = WorldOf(2, algorithm, standalone_bytes);
  world.is_timeless = true;
  RunLinkedRanks(world, [](LinkedRank& rank) {
    const int32_t number = rank.rank.value();
    ASSIGN_OR_RETURN(const RankLog linked, Train(rank.rounds(), number));
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model, rank.make_here());
    ASSIGN_OR_RETURN(const RankLog local, Train(model->rounds(), number));
    EXPECT_EQ(rank.rounds().plan().Hash(), model->rounds().plan().Hash());
    EXPECT_EQ(rank.pair.model().sent_bytes() > 0, model->sent_bytes() > 0);
    EXPECT_EQ(rank.pair.model().rank(), rank.rank);
    EXPECT_EQ(linked.size(), local.size());
    for (size_t i = 0; i < std::min(linked.size(), local.size()); ++i) {
      EXPECT_EQ(linked[i], local[i]) << "rank " << number << ", entry " << i;
    }
    return rank.meet("both");
  });
}

TEST_P(LinkedAlgorithmTest, EqualsRoundsInProcessBitByBit) {
  ExpectEqual(GetParam(), PlanOptions::kNoStandalone);
}

TEST_P(LinkedAlgorithmTest, EqualsThemWhereTensorsLieOutsideOfTheirBuckets) {
  ExpectEqual(GetParam(), 200);  // the first, the third with 280 bytes, and the fourth
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    // What does not repeat in process cannot be compared; model_port_link_test runs it.
    if ((*MakeAlgorithm(entry.name, {}))->Repeats()) names.push_back(entry.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, LinkedAlgorithmTest, ::testing::ValuesIn(AlgorithmNames()),
                         [](const auto& info) { return info.param; });

TEST(LinkedRoundsTest, FollowsThePlansThatATunerTries) {
  RunLinkedRanks(WorldOf(2, "gradient_allreduce"), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    rounds.times().Begin(std::size(kTrainedCounts));
    for (int round = 0; round < 6; ++round) {
      RETURN_IF_ERROR(Produce(rounds, rank.rank.value(), round));
      RETURN_IF_ERROR(rounds.WaitRound(Soon()));
      const SlotResult whole = rounds.ResultOf(SlotId(0));
      float first = 0;
      std::memcpy(&first, whole.data, sizeof(first));
      const float expected = static_cast<float>(round + 1) * 0.13F / 2 *
                             (-11.0F * static_cast<float>(Uses(0, round, 0)) +
                              -8.0F * static_cast<float>(Uses(1, round, 0)));
      EXPECT_NEAR(first, expected, 1e-5) << "round " << round;
      const uint64_t size = round % 2 == 0 ? 300 : 100000;
      RETURN_IF_ERROR(
          rounds.Resize({SlotId(4), SlotId(3), SlotId(2), SlotId(1), SlotId(0)}, size, Soon()));
      EXPECT_EQ(rounds.plan().buckets().size(), round % 2 == 0 ? 4U : 1U);
    }
    EXPECT_GT(rounds.times().ready_ns(BucketId(0)), 0) << "measured by the daemon";
    EXPECT_GE(rounds.times().done_ns(BucketId(0)), rounds.times().ready_ns(BucketId(0)));
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, NamesTheTensorsThatAreMissing) {
  RunLinkedRanks(FailingWorld(1), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    for (int32_t slot : {0, 1, 2, 4}) RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
    const absl::Status late = rounds.WaitRound(WaitClock().Now() + absl::Milliseconds(50));
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("t3"));
    EXPECT_THAT(std::string(late.message()), ::testing::Not(HasSubstr("t4")));
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, AMarkIsRefusedAsInProcess) {
  RunLinkedRanks(WorldOf(1, "gradient_allreduce"), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(0)));
    EXPECT_EQ(rounds.MarkReady(SlotId(0)).code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(rounds.MarkReady(SlotId(99)).code(), absl::StatusCode::kInvalidArgument);
    RETURN_IF_ERROR(rounds.EndRound());
    EXPECT_EQ(rounds.EndRound().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(rounds.Agreed(Soon()).status().code(), absl::StatusCode::kFailedPrecondition);
    return rounds.WaitRound(Soon());
  });
}

TEST(LinkedRoundsTest, AnAbortEndsTheWaitsOfAllRanks) {
  RunLinkedRanks(FailingWorld(2), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    if (rank.rank == Rank(0)) rounds.Abort(absl::AbortedError("the user has had enough"));
    // The daemon reads it beside the page, so that rounds may be complete before.
    absl::Status ended;
    const absl::Time patience = Soon();
    for (int32_t round = 0; ended.ok() && WaitClock().Now() < patience; ++round) {
      RETURN_IF_ERROR(Produce(rounds, rank.rank.value(), round));
      ended = rounds.WaitRound(Soon());
    }
    EXPECT_THAT(std::string(ended.message()), HasSubstr("the user has had enough"));
    RETURN_IF_ERROR(Produce(rounds, rank.rank.value(), 1));
    EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()),
                HasSubstr("the user has had enough"))
        << "as every later one";
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, ATrainerThatGoesInARoundIsNamedToTheOthers) {
  RunLinkedRanks(FailingWorld(2), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    if (rank.rank == Rank(0)) {
      RETURN_IF_ERROR(Produce(rounds, rank.rank.value(), 0));
      EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()), HasSubstr("rank 1"));
      return absl::OkStatus();
    }
    // A bucket is under way, in which rank 0 waits for the other ones.
    for (int32_t slot : {4, 3}) RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
    rank.pair.EndTrainer();
    EXPECT_TRUE(rank.pair.AwaitOver(Soon()));
    rank.pair.EndServer();
    return absl::OkStatus();
  });
}

TEST(LinkedRoundsTest, ADaemonThatGoesEndsWaitsAndLeavesTheBuckets) {
  RunLinkedRanks(FailingWorld(1), [](LinkedRank& rank) {
    ModelRounds& rounds = rank.rounds();
    Fill(rounds, 3, 0, 0);
    const float before = *reinterpret_cast<const float*>(rounds.DataOf(SlotId(3)));
    rank.pair.EndServer();
    for (int attempt = 0; attempt < 2; ++attempt) {
      const absl::Time start = WaitClock().Now();
      const absl::Status gone = rounds.WaitRound(Soon());
      EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
      EXPECT_THAT(
          std::string(gone.message()),
          HasSubstr(absl::StrCat("its pelton-daemon (pid ", getpid(), ") is gone; its log says")));
      EXPECT_LT(WaitClock().Now() - start, absl::Seconds(10));
    }
    EXPECT_EQ(rounds.SaveStates(Soon()).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(*reinterpret_cast<const float*>(rounds.DataOf(SlotId(3))), before);
    return absl::OkStatus();
  });
}

// Marks all tensors of a plan in which each lies outside of its bucket.
absl::Status MarkAll(ModelRounds& rounds, OwnMemory& own) {
  for (int32_t slot = 0; slot < static_cast<int32_t>(std::size(kTrainedCounts)); ++slot) {
    FillAt(own.At(slot), slot, 0, 0);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot), own.At(slot)));
  }
  return absl::OkStatus();
}

TEST(LinkedRoundsTest, AModelThatIsLetGoInARoundGivesTheTensorsMemoryBack) {
  RunLinkedRanks(FailingWorld(1, /*standalone_bytes=*/1), [](LinkedRank& rank) {
    OwnMemory own;
    RETURN_IF_ERROR(MarkAll(rank.rounds(), own));
    rank.pair.EndTrainer();
    EXPECT_FALSE(IsUnshared(own.RegionOf(0))) << "the daemon has said that it is through";
    return absl::OkStatus();
  });
}

// The daemons of other ranks may be in the middle of a write.
TEST(LinkedRoundsTest, WhatADaemonHadUnderWayWhenItWentIsTakenBack) {
  RunLinkedRanks(FailingWorld(1, /*standalone_bytes=*/1), [](LinkedRank& rank) {
    OwnMemory own;
    RETURN_IF_ERROR(MarkAll(rank.rounds(), own));
    rank.pair.EndServer();
    EXPECT_EQ(rank.rounds().WaitRound(Soon()).code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(IsUnshared(own.RegionOf(0)));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace pelton
