// Turns of the scheduler that last, because a stage computes there or because an abort is slow to
// end what is in flight. Threads of a simulation wait for them, in virtual time.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/backoff.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/base/ids.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "core/round/sim_runner.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Few: a waiter looks every 50 us of virtual time.
constexpr uint64_t kSeeds = 2;
constexpr int kBuckets = 3;

// Threads: as Stage. Owns: the function.
class ComputingStage final : public Stage {
 public:
  explicit ComputingStage(std::function<void(BucketId)> compute) : compute_(std::move(compute)) {}
  absl::string_view name() const override { return "compute"; }
  absl::Status Start(BucketRun& run, StageState*) override {
    compute_(run.layout().id);
    return absl::OkStatus();
  }

 private:
  const std::function<void(BucketId)> compute_;
};

Plan OneTensorABucket() {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < kBuckets; ++i) {
    tensors.push_back({.name = absl::StrCat("t", i), .count = 100});
  }
  PlanOptions options;
  options.bucket_size_bytes = 400;
  return *Plan::Build(std::move(tensors), options);
}

// One rank with a trainer's thread, which runs what the test says, and the scheduler's.
// Threads: the test's, which runs those of the simulation. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed) : sim_(seed), runner_(sim_), threads_(sim_) {
    // How many spins a wait has depends on the machine's cores, unless there are none.
    SetProcessesOnHost(1'000);
    runner_.next_takes = [] { return absl::Milliseconds(1); };
  }

  absl::Duration operation_timeout = absl::Minutes(1);
  absl::Duration first_computes;  // of the first bucket, behind its operation

  void Run(std::function<void(ModelRounds&)> trainer) {
    threads_.Start(process_, [this, trainer = std::move(trainer)] {
      ModelRoundsOptions options;
      options.runner = &runner_;
      options.operation_timeout = operation_timeout;
      options.pipeline_factory = [this](const BucketLayout& layout) {
        PipelineSpec spec;
        spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
        spec.stages.push_back(std::make_unique<ComputingStage>([this](BucketId bucket) {
          if (bucket == BucketId(0)) Pass(first_computes);
        }));
        return Pipeline::Build(std::move(spec), layout);
      };
      std::unique_ptr<ModelRounds> rounds =
          *ModelRounds::Create(OneTensorABucket(), std::move(options));
      trainer(*rounds);
    });
    EXPECT_TRUE(threads_.RunUntilAllEnd()) << "a thread waits for what does not come";
  }

  // The rest is for the threads.

  void Pass(absl::Duration time) {
    threads_.WaitUntil([] { return false; }, sim_.Now() + time);
  }
  static void Mark(ModelRounds& rounds, int bucket) {
    for (SlotId slot : rounds.plan().bucket(BucketId(bucket)).slots) {
      EXPECT_TRUE(rounds.MarkReady(slot).ok());
    }
  }
  absl::Time In(absl::Duration time) const { return sim_.Now() + time; }
  SimRunner& runner() { return runner_; }

 private:
  SimThreads::Process process_;
  SimExecutor sim_;
  SimRunner runner_;
  SimThreads threads_;  // last: what it unwinds uses the others
};

TEST(LongTurnSimTest, ABucketsTimeOutBeginsWhenTheOneBeforeIsComplete) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    world.operation_timeout = absl::Seconds(2);
    world.first_computes = absl::Milliseconds(2'500);
    world.Run([&world](ModelRounds& rounds) {
      World::Mark(rounds, 0);
      world.Pass(absl::Milliseconds(2'600));
      for (int bucket = 1; bucket < kBuckets; ++bucket) World::Mark(rounds, bucket);
      const absl::Status status = rounds.WaitRound(world.In(absl::Seconds(30)));
      EXPECT_TRUE(status.ok()) << status;
    });
  });
}

TEST(LongTurnSimTest, AWaitWithoutAnAnswerEndsTheRoundsAndSaysWhere) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    world.first_computes = absl::Seconds(5);
    world.Run([&world](ModelRounds& rounds) {
      for (int bucket = 0; bucket < kBuckets; ++bucket) World::Mark(rounds, bucket);
      world.Pass(absl::Milliseconds(10));
      const absl::Status late = rounds.WaitRound(world.In(absl::Milliseconds(100)));
      EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
      EXPECT_TRUE(absl::StartsWith(late.message(), "model 'model', rank 0, round 1: the scheduler"))
          << late;
      EXPECT_TRUE(world.runner().is_aborted()) << "the peers wait";
      const absl::Status later = rounds.WaitRound(world.In(absl::Seconds(30)));
      EXPECT_TRUE(absl::StrContains(later.message(), late.message())) << later;
    });
  });
}

// What is in flight uses the model's memory, which goes with the model (OWN-1).
TEST(LongTurnSimTest, TheEndWaitsForAnAbortByTimeAndNotByLooks) {
  ForEachSeed(kSeeds, [](uint64_t seed) {
    World world(seed);
    world.runner().next_takes = [] { return kNever; };
    world.runner().abort_takes = absl::Milliseconds(200);
    world.runner().longest_park_after_abort = absl::Microseconds(20);
    world.Run([&world](ModelRounds& rounds) {
      World::Mark(rounds, 0);
      world.Pass(absl::Milliseconds(5));
      EXPECT_EQ(world.runner().running(), 1u);
    });
    EXPECT_EQ(world.runner().running(), 0u);
  });
}

}  // namespace
}  // namespace pelton
