// The waiter that drives a scheduler which runs among other actors: tensors are marked and
// questions asked by actors of the same executor, whose turns a seed puts in any order, between any
// two atomic accesses of the waiter, and late. What nobody polls any more shows as an end of an
// operation, or a launch, that comes late.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/actor/actor.h"
#include "core/actor/backoff.h"
#include "core/actor/context.h"
#include "core/actor/executor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/actor/spawn.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/plan_instance.h"
#include "core/round/round_waiter.h"
#include "core/round/scheduler.h"
#include "core/round/sim_runner.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kBuckets = 3;
// A turn that is due comes up to so much later, now and then.
constexpr absl::Duration kLongestDelay = absl::Microseconds(100);
// A few such turns behind each other, and the waiter's retry.
constexpr absl::Duration kPatience = absl::Microseconds(700);

struct MarkNext {};

// Marks a round's tensors one by one. Threads: its turns. Owns: nothing.
class Marker final : public Actor {
 public:
  Marker(SimExecutor* sim, ReadyTracker* tracker) : sim_(*sim), tracker_(*tracker) {}
  void Handle(MarkNext) {
    EXPECT_TRUE(tracker_.MarkReady(SlotId(next_)).ok());
    next_ = (next_ + 1) % kBuckets;
    if (next_ == 0) return;
    const auto later =
        absl::Microseconds(static_cast<int64_t>(sim_.Uniform(2) * sim_.Uniform(900)));
    timer_ = context().SendAfter(*this, later, MarkNext{});
  }

 private:
  SimExecutor& sim_;
  ReadyTracker& tracker_;
  int32_t next_ = 0;
  Timer timer_;
};

struct AskNext {};

// Asks the scheduler what the round is at, again and again.
// Threads: its turns. Owns: nothing.
class Asker final : public Actor {
 public:
  Asker(SimExecutor* sim, ActorRef<BucketScheduler> scheduler, int* answers)
      : sim_(*sim), scheduler_(std::move(scheduler)), answers_(*answers) {}
  void Handle(AskNext) {
    const absl::Time asked = sim_.Now();
    context().Then(scheduler_.Ask(LookAtRound{}, asked + absl::Minutes(1)),
                   [this, asked](absl::StatusOr<RoundSight> sight) {
                     EXPECT_TRUE(sight.ok()) << sight.status();
                     // It does not wake the waiter, which may be parked with the scheduler's turn.
                     EXPECT_LE(sim_.Now() - asked, waits::kLongestParkWithTurn + kPatience);
                     ++answers_;
                     const auto later =
                         absl::Microseconds(static_cast<int64_t>(1 + sim_.Uniform(2'000)));
                     timer_ = context().SendAfter(*this, later, AskNext{});
                   });
  }

 private:
  SimExecutor& sim_;
  const ActorRef<BucketScheduler> scheduler_;
  int& answers_;
  Timer timer_;
};

Plan MakePlan() {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < kBuckets; ++i)
    tensors.push_back({.name = absl::StrCat("t", i), .count = 100});
  PlanOptions options;
  options.bucket_size_bytes = 400;
  return *Plan::Build(std::move(tensors), options);
}

// One model's scheduler on the simulation's executor, and its trainer as a thread beside it.
// Threads: the test's, which runs those of the simulation. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed) : sim_(seed), runner_(sim_), instance_(MakePlan()), threads_(sim_) {
    if (sim_.Uniform(2) == 0) sim_.SetFaults({.delay_one_in = 4, .longest_delay = kLongestDelay});
    runner_.next_takes = [this] {
      return absl::Microseconds(static_cast<int64_t>(sim_.Uniform(2) * sim_.Uniform(3'000)));
    };
    for (const BucketLayout& bucket : instance_.plan.buckets()) {
      PipelineSpec spec;
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      instance_.pipelines.push_back(*Pipeline::Build(std::move(spec), bucket));
    }
    instance_.storage = *BucketStorage::Create(instance_.plan, "model");
    instance_.tracker =
        std::make_unique<ReadyTracker>(instance_.plan, *instance_.storage, sink_, Round(1));
  }

  void Run(int rounds) {
    threads_.Start(process_, [this, rounds] {
      SchedulerOptions options;
      options.runner = &runner_;
      options.operation_timeout = absl::Minutes(1);
      options.waiter_drives = waiter_.drives();
      const auto scheduler =
          Spawn<BucketScheduler>(sim_, {}, std::move(options), PlanInstanceLoan(&instance_));
      sink_.set_scheduler(scheduler);
      waiter_.set_scheduler(scheduler);
      const auto marker = Spawn<Marker>(sim_, {}, &sim_, instance_.tracker.get());
      const auto asker = Spawn<Asker>(sim_, {}, &sim_, scheduler, &answers_);
      EXPECT_TRUE(asker.Send(AskNext{}).ok());
      for (int round = 0; round < rounds; ++round) RunRound(scheduler, marker);
      const absl::Time soon = sim_.Now() + absl::Seconds(1);
      for (const absl::Status& ended :
           {StopAndWait(asker, soon), StopAndWait(marker, soon), StopAndWait(scheduler, soon)}) {
        EXPECT_TRUE(ended.ok()) << ended;
      }
    });
    EXPECT_TRUE(threads_.RunUntilAllEnd()) << "the trainer waits for what does not come";
    EXPECT_LE(runner_.worst_delay(), kPatience) << "nobody polled for an operation's end";
  }

  int answers() const { return answers_; }

 private:
  void RunRound(const ActorRef<BucketScheduler>& scheduler, const ActorRef<Marker>& marker) {
    ReadyTracker& tracker = *instance_.tracker;
    sink_.Arm(instance_.plan);
    EXPECT_TRUE(marker.Send(MarkNext{}).ok());
    if (sim_.Uniform(2) == 0) threads_.WaitUntil([] { return false; }, sim_.Now() + kPatience);
    const absl::Time since = sim_.Now();
    absl::Time deadline = since + absl::Seconds(30);
    const Future<void> done =
        scheduler.Ask(AwaitRound{tracker.round(), deadline, {}}, absl::InfiniteFuture());
    const absl::Status waited = waiter_.WaitFor(done, &deadline);
    EXPECT_TRUE(waited.ok()) << waited;
    EXPECT_TRUE(done.ready()) << "a round does not end";
    EXPECT_LE(sim_.Now() - std::max(since, runner_.moved_at()), kPatience)
        << "the end of a round is seen late";
    EXPECT_EQ(runner_.running(), 0u);
    tracker.OpenRound();
  }

  SimThreads::Process process_;
  SimExecutor sim_;
  SimRunner runner_;
  PlanInstance instance_;
  SchedulerSink sink_{runner_, /*device=*/nullptr};
  RoundWaiter waiter_{runner_, /*has_device=*/false, /*standstill=*/nullptr};
  int answers_ = 0;
  SimThreads threads_;  // last: what it unwinds uses the others
};

TEST(RoundActorsSimTest, EveryRoundEndsInTimeWhoeverHasATurnBetween) {
  int answers = 0;
  const uint64_t seeds = ForEachSeed(600, [&answers](uint64_t seed) {
    World world(seed);
    world.Run(4);
    answers += world.answers();
  });
  EXPECT_GT(static_cast<uint64_t>(answers), seeds) << "nobody comes between";
}

}  // namespace
}  // namespace pelton
