#include "backend/averaging_loop.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/test_loop_world.h"
#include "comm/communicator.h"
#include "comm/tiers.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AveragingLoopTest, AllRanksEndAfterTheSameRoundAndResume) {
  int resumed = 0;
  ForEachSeed(300, [&](uint64_t seed) {
    LoopWorld world(seed, static_cast<int32_t>(1 + seed % 5));
    for (int phase = 0; phase < 2; ++phase) {
      world.ResumeAll();
      for (int32_t rank = 0; rank < world.size(); ++rank) {
        world.Train(rank, static_cast<int>(world.executor().Uniform(12)));
      }
      ASSERT_TRUE(world.RunUntilStopped(phase + 1)) << "a rank hangs";
      world.ExpectEndedTogether();
      world.ExpectSumIsKept();
      world.ExpectEqualWeights();
      resumed += phase;
    }
  });
  EXPECT_GT(resumed, 0);
}

TEST(AveragingLoopTest, DeathEndsTheLoopOfAllWithItsReason) {
  ForEachSeed(300, [&](uint64_t seed) {
    LoopWorld world(seed, static_cast<int32_t>(2 + seed % 4));
    world.ResumeAll();
    for (int32_t rank = 0; rank < world.size(); ++rank) world.Train(rank, 1000000);
    world.executor().RunFor(
        absl::Microseconds(static_cast<int64_t>(world.executor().Uniform(20000))));
    const auto dead = static_cast<int32_t>(world.executor().Uniform(world.size()));
    world.fabric().KillRank(Rank(dead));
    world.executor().RunFor(absl::Milliseconds(300));
    for (int32_t rank = 0; rank < world.size(); ++rank) {
      if (rank == dead) continue;
      const absl::Status status = world.trainer(rank).claim_status();
      EXPECT_THAT(status.ToString(), HasSubstr(absl::StrCat("rank ", dead, " died")));
      EXPECT_EQ(world.rank(rank).loop().Resume(), status);
      EXPECT_EQ(world.rank(rank).loop().Stop(world.executor().Now() + kStopTimeout), status);
    }
  });
}

// What a callback throws is told to this rank's callers, and its peers do not wait for it.
TEST(AveragingLoopTest, AnExceptionEndsTheLoopOfAllWithItsReason) {
  for (const bool in_copy : {true, false}) {
    LoopWorld world(1, 2);
    in_copy ? world.rank(0).ThrowInCopy() : world.rank(0).ThrowInAdd();
    world.ResumeAll();
    world.executor().RunFor(absl::Seconds(1));
    for (int32_t rank = 0; rank < 2; ++rank) {
      const absl::Status status =
          world.rank(rank).loop().Claim(world.executor().Now() + absl::Seconds(1));
      EXPECT_THAT(status.ToString(), HasSubstr("resized before the")) << "rank " << rank;
      EXPECT_EQ(world.rank(rank).loop().Resume(), status);
    }
  }
}

TEST(AveragingLoopTest, ATurnThatThrowsEndsTheRoundsOfAllWithItsReason) {
  LoopWorld world(1, 2);
  world.rank(0).ThrowInTurn();
  world.ResumeAll();
  world.executor().RunFor(absl::Seconds(1));
  const absl::Status other = world.rank(1).loop().Claim(world.executor().Now() + absl::Seconds(1));
  EXPECT_THAT(other.ToString(), HasSubstr("the loop's own bug"));
  // Which is what its backend tells all ranks.
  EXPECT_THAT(world.rank(1).told(), ElementsAre(HasSubstr("the loop's own bug")));
}

TEST(AveragingLoopTest, AClaimThatNobodyWaitsForDoesNotHold) {
  LoopWorld world(1, 2);
  { const Future<void> given_up = world.rank(0).loop().RequestClaim(); }
  world.ResumeAll();
  world.executor().RunFor(absl::Seconds(1));
  EXPECT_GT(world.rank(0).added(), 0);
}

TEST(AveragingLoopTest, TrainingGoesOnWhileARoundIsUnderWay) {
  LoopWorld world(1, 2);
  world.fabric().Delay({Rank(0), Rank(1)}, absl::Seconds(1));
  world.fabric().Delay({Rank(1), Rank(0)}, absl::Seconds(1));
  world.ResumeAll();
  for (int32_t rank = 0; rank < 2; ++rank) world.Train(rank, 1000000);
  world.executor().RunFor(absl::Milliseconds(500));
  EXPECT_EQ(world.rank(0).added(), 0) << "the first result is still on its way";
  EXPECT_GT(world.rank(0).trained(), 100 * kCount) << "training waited for it";
  // Two buckets, one after the other; an allreduce crosses each wire twice.
  world.executor().RunFor(absl::Seconds(4));
  EXPECT_EQ(world.rank(0).added(), 1);
}

TEST(AveragingLoopTest, StopSaysHowManyHadAskedByItsDeadline) {
  LoopWorld world(1, 3);
  world.ResumeAll();
  const absl::Time deadline = world.executor().Now() + absl::Seconds(1);
  Future<void> one = world.rank(1).loop().RequestStop(deadline);
  const absl::Status status = world.rank(2).loop().Stop(deadline);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.ToString(), HasSubstr("2 of 3 ranks had asked to stop by round"));
  EXPECT_FALSE(std::move(one).Await(deadline + absl::Seconds(1)).ok());
  // The wish stands: the last rank's ends the loop, and asking again finds it ended.
  EXPECT_TRUE(world.rank(0).loop().Stop(world.executor().Now() + kStopTimeout).ok());
  world.executor().RunFor(absl::Milliseconds(10));
  EXPECT_TRUE(world.rank(2).loop().Stop(world.executor().Now() + kStopTimeout).ok());
}

TEST(AveragingLoopTest, ResumeWithdrawsTheWishToStop) {
  LoopWorld world(1, 2);
  world.ResumeAll();
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  Future<void> stop = world.rank(0).loop().RequestStop(deadline);
  world.executor().RunFor(absl::Milliseconds(20));
  EXPECT_TRUE(world.rank(0).loop().Resume().ok());
  EXPECT_EQ(std::move(stop).Await(deadline).code(), absl::StatusCode::kCancelled);
  Future<void> alone = world.rank(1).loop().RequestStop(world.executor().Now() + absl::Seconds(1));
  EXPECT_EQ(std::move(alone).Await(world.executor().Now() + kStopTimeout).code(),
            absl::StatusCode::kDeadlineExceeded)
      << "stopped by one rank's wish";
}

TEST(AveragingLoopTest, StopAndResumeMayBeRepeated) {
  LoopWorld world(1, 1);
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok()) << "a loop begins stopped";
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(world.rank(0).loop().Resume().ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok());
}

TEST(AveragingLoopTest, StopLetsGoOfAClaim) {
  LoopWorld world(1, 1);
  const absl::Time deadline = world.executor().Now() + kStopTimeout;
  ASSERT_TRUE(world.rank(0).loop().Resume().ok());
  ASSERT_TRUE(world.rank(0).loop().Claim(deadline).ok());
  EXPECT_TRUE(world.rank(0).loop().Stop(deadline).ok());
}

TEST(AveragingLoopTest, RefusesWhatItCannotDrive) {
  LoopWorld world(1, 1);
  EXPECT_THAT(AveragingLoop::Create(world.rank(0).rounds(), {}).status().ToString(),
              HasSubstr("no callback copy_in"));
  const auto options = [](absl::Duration pause) {
    AveragingLoopOptions with_callbacks;
    with_callbacks.pause = pause;
    with_callbacks.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
    with_callbacks.add = [](SlotId, const std::byte*) {};
    return with_callbacks;
  };
  EXPECT_THAT(
      AveragingLoop::Create(world.rank(0).rounds(), options(-absl::Seconds(1))).status().ToString(),
      HasSubstr("pause is -1s"));
}

TEST(AveragingLoopTest, NeedsTheStopTensor) {
  SimExecutor executor(1);
  SimOptions network;
  network.clock = &executor.clock();
  SimFabric fabric(WorldSize(1), network);
  auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  const std::unique_ptr<Algorithm> algorithm = *MakeAlgorithm("async_model_average", {});
  ModelRoundsOptions options;
  options.executor = &executor;
  options.runner = communicators[0].get();
  options.pipeline_factory = [&](const BucketLayout& layout) {
    return MakePipeline(*algorithm, layout, Tiers::Of(*communicators[0]));
  };
  const auto rounds =
      *ModelRounds::Create(*Plan::Build({{"a", DType::kFloat32, 3, {}}}, {}), std::move(options));
  AveragingLoopOptions loop;
  loop.copy_in = [](SlotId, std::byte*) { return absl::OkStatus(); };
  loop.add = [](SlotId, const std::byte*) {};
  EXPECT_THAT(AveragingLoop::Create(*rounds, std::move(loop)).status().ToString(),
              HasSubstr("the plan has no tensor 'averaging: wish to stop'"));
}

// The same on threads: the loop's and the scheduler's own, and one that trains.
TEST(AveragingLoopTest, RunsOnThreads) {
  constexpr int32_t kSize = 3;
  SimFabric fabric{WorldSize(kSize)};
  std::vector<std::unique_ptr<Communicator>> communicators =
      *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(kSize)));
  std::vector<std::unique_ptr<LoopRank>> ranks;
  for (auto& communicator : communicators) {
    ranks.push_back(
        std::make_unique<LoopRank>(*communicator, MakeModelAverage(communicator->rank())));
    ranks.back()->Begin(nullptr, absl::Microseconds(100));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&rank] {
      const absl::Time deadline = Clock::Real().Now() + kStopTimeout;
      EXPECT_TRUE(rank->loop().Resume().ok());
      for (int step = 0; step < 200; ++step) {
        EXPECT_TRUE(rank->loop().Claim(deadline).ok());
        rank->set_held(true);
        rank->Train(1);
        rank->set_held(false);
        rank->loop().Release();
      }
      EXPECT_TRUE(rank->loop().Stop(deadline).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& rank : ranks) {
    EXPECT_EQ(rank->rounds().round(), ranks[0]->rounds().round());
    EXPECT_NEAR(rank->weights()[0], 200, 0.01);
  }
}

}  // namespace
}  // namespace pelton
