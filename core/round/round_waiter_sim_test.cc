// The waiter that drives, the scheduler's own thread, and threads that mark tensors, ask and abort:
// code of the product, switched by a seed before each atomic access, in virtual time. Nothing that
// one of them does takes time, but for the operations and for what the test waits for. So whatever
// comes late by more than a retry was slept through.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/actor/backoff.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/base/check.h"
#include "core/base/long_wait.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/blocking_stage.h"
#include "core/round/model_rounds.h"
#include "core/round/round_waiter.h"
#include "core/round/sim_runner.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr size_t kBuckets = 4;
// The waiter looks again after 50 us where it has found the scheduler busy; now and then it finds
// it busy again.
constexpr absl::Duration kRetries = absl::Microseconds(200);
// A timer of the scheduler's thread does not end a park on the runner, which has 1 ms.
constexpr absl::Duration kTimerDelay = absl::Microseconds(1'200);

absl::Time interrupt_at = absl::InfiniteFuture();
absl::Status CheckAtThatTime() {
  if (WaitClock().Now() < interrupt_at) return absl::OkStatus();
  return InterruptedError("the user has pressed a key");
}

// Threads: as Stage. Owns: the function.
class CallingStage final : public BlockingStage {
 public:
  CallingStage(ActorRef<StageCaller> caller, std::function<absl::Status()> call)
      : BlockingStage(std::move(caller)), call_(std::move(call)) {}
  absl::string_view name() const override { return "call"; }

 protected:
  BlockingCall::Function MakeCall(BucketRun&, StageState*) override { return call_; }

 private:
  const std::function<absl::Status()> call_;
};

Plan FourBuckets() {
  std::vector<TensorSpec> tensors;
  for (size_t i = 0; i < kBuckets; ++i) {
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
  // `is_timeless`: nothing takes time; else so in half of the worlds.
  explicit World(uint64_t seed, bool is_timeless = false)
      : sim_(seed), is_timeless_(Chance(2) || is_timeless), runner_(sim_), threads_(sim_) {
    // How many spins a wait has depends on the machine's cores, unless there are none.
    SetProcessesOnHost(1'000);
    runner_.next_takes = [this] { return UpTo(absl::Milliseconds(4)); };
    runner_.on_launch = [this](BucketId bucket) { OnLaunch(bucket); };
    runner_.on_slept_through = [this] {
      EXPECT_FALSE(IsLaunchDue()) << "parked to the end, and a bucket was ready";
    };
  }

  // How long each call of a bucket takes; null: there are none.
  std::function<absl::Duration()> call_takes;

  void Run(std::function<void()> trainer) {
    threads_.Start(process_, [this, trainer = std::move(trainer)] {
      std::optional<ThreadExecutor> callers;
      ActorRef<StageCaller> caller;
      if (call_takes != nullptr) caller = Spawn<StageCaller>(callers.emplace(), {});
      ModelRoundsOptions options;
      options.runner = &runner_;
      options.pipeline_factory = [this, caller](const BucketLayout& layout) {
        PipelineSpec spec;
        const auto call = [&] {
          if (call_takes == nullptr || Chance(3)) return;
          spec.stages.push_back(std::make_unique<CallingStage>(caller, [this] { return Call(); }));
        };
        call();
        spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
        call();
        return Pipeline::Build(std::move(spec), layout);
      };
      rounds_ = *ModelRounds::Create(FourBuckets(), std::move(options));
      BeginRound();
      trainer();
      callers.reset();
      const absl::Time ended = sim_.Now();
      rounds_.reset();
      EXPECT_LE(sim_.Now() - ended, kTimerDelay + runner_.abort_takes);
    });
    EXPECT_TRUE(threads_.RunUntilAllEnd()) << "a thread waits for what does not come";
    EXPECT_LE(runner_.worst_delay(), kRetries) << "an operation's end was slept through";
    EXPECT_LE(worst_launch_, kRetries) << "a bucket that was ready was slept through";
  }

  // The rest is for the threads.

  bool Chance(uint64_t one_in) { return sim_.Uniform(one_in) == 0; }
  // Often no time at all, so that what takes some meets what takes none.
  absl::Duration UpTo(absl::Duration most) {
    if (is_timeless_ || Chance(2)) return absl::ZeroDuration();
    const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(most));
    return absl::Nanoseconds(static_cast<int64_t>(sim_.Uniform(nanos + 1)));
  }
  void Pass(absl::Duration time) {
    threads_.WaitUntil([] { return false; }, sim_.Now() + time);
  }
  void Await(absl::FunctionRef<bool()> done) { threads_.WaitUntil(done, absl::InfiniteFuture()); }
  // One more thread; AwaitOthers waits for its end.
  void Fork(std::function<void()> body) {
    ++others_;
    threads_.Run([this, body = std::move(body)] {
      body();
      --others_;
    });
  }
  void AwaitOthers() {
    Await([this] { return others_ == 0; });
  }

  void BeginRound() {
    ForgetMarks();
    launched_ = 0;
  }
  // Marks `count` tensors in any order; `hurries`: one right after the other.
  void Mark(size_t count, bool hurries = false) {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < kBuckets; ++i) slots.push_back(static_cast<int32_t>(i));
    while (count-- > 0) {
      const auto place = slots.begin() + static_cast<ptrdiff_t>(sim_.Uniform(slots.size()));
      MarkOne(SlotId(*place));
      slots.erase(place);
      if (!hurries) Pass(UpTo(absl::Milliseconds(2)));
    }
  }
  // All of the round's but those of `complete`, in the plan's order.
  void MarkAllBut(const std::vector<BucketId>& complete) {
    for (const BucketLayout& bucket : rounds_->plan().buckets()) {
      if (std::find(complete.begin(), complete.end(), bucket.id) != complete.end()) continue;
      for (SlotId slot : bucket.slots) MarkOne(slot);
    }
  }
  // From now on what is marked need not be launched any more.
  void ForgetMarks() { marked_.assign(kBuckets, absl::InfiniteFuture()); }
  // Buckets of this round.
  size_t launched() const { return launched_; }
  // Asks what the round is at, which whoever has the scheduler's turn answers.
  void Look() {
    Pass(UpTo(absl::Milliseconds(5)));
    const absl::Time asked = sim_.Now();
    EXPECT_TRUE(rounds_->Look(asked + absl::Minutes(1)).ok());
    EXPECT_LE(sim_.Now() - asked, kRetries) << "a question was slept through";
  }
  // Waits for a round that ends well, and looks at when that was seen.
  void WaitRound() {
    const absl::Time since = sim_.Now();
    const bool is_all_marked = others_ == 0;
    const absl::Status status = rounds_->WaitRound(since + absl::Minutes(1));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_LE(sim_.Now() - std::max({runner_.moved_at(), returned_at_, since}), kRetries)
        << "the end of a round was slept through";
    // It has work as long as it waits.
    if (is_all_marked) {
      EXPECT_LE(runner_.moved_by_executor_at(), since + kRetries)
          << "the waiter does not come to drive";
    }
  }

  SimExecutor& sim() { return sim_; }
  // When the last call returned.
  absl::Time returned_at() const { return returned_at_; }
  SimRunner& runner() { return runner_; }
  ModelRounds& rounds() { return *rounds_; }

 private:
  void MarkOne(SlotId slot) {
    marked_[static_cast<size_t>(rounds_->plan().slot(slot).bucket.value())] = sim_.Now();
    EXPECT_TRUE(rounds_->MarkReady(slot).ok());
  }
  // Since when all buckets up to `bucket` have been ready.
  absl::Time ReadySince(size_t bucket) const {
    return *std::max_element(marked_.begin(), marked_.begin() + static_cast<ptrdiff_t>(bucket) + 1);
  }
  bool IsLaunchDue() const {
    if (call_takes != nullptr) return false;  // it may wait for calls of the bucket before
    const bool may_launch = launched_ < kBuckets && runner_.running() < 2 && !runner_.is_aborted();
    return may_launch && ReadySince(launched_) < sim_.Now();
  }
  void OnLaunch(BucketId bucket) {
    if (bucket == kNoBucket) return;
    EXPECT_EQ(bucket, BucketId(static_cast<int32_t>(launched_))) << "not the plan's order";
    absl::Time due = ReadySince(launched_);
    const bool waits_for_others = launched_++ >= 2 || call_takes != nullptr;  // two at once
    if (waits_for_others) due = std::max({due, runner_.moved_at(), returned_at_});
    worst_launch_ = std::max(worst_launch_, sim_.Now() - due);
  }

  absl::Status Call() {
    EXPECT_FALSE(std::exchange(is_calling_, true)) << "two functions meet";
    Pass(call_takes());
    is_calling_ = false;
    returned_at_ = sim_.Now();
    return absl::OkStatus();
  }

  SimThreads::Process process_;
  SimExecutor sim_;
  const bool is_timeless_;
  SimRunner runner_;
  std::unique_ptr<ModelRounds> rounds_;
  std::vector<absl::Time> marked_;  // by bucket
  size_t launched_ = 0;             // buckets of this round
  absl::Duration worst_launch_;
  bool is_calling_ = false;
  absl::Time returned_at_ = absl::InfinitePast();
  int others_ = 0;
  SimThreads threads_;  // last: what it unwinds uses the others
};

TEST(RoundWaiterSimTest, EveryRoundEndsAndNobodySleepsThroughAnything) {
  ForEachSeed(800, [](uint64_t seed) {
    World world(seed);
    world.Run([&world] {
      for (int round = 0; round < 3; ++round) {
        world.Fork([&world] { world.Mark(kBuckets); });
        if (world.Chance(2)) world.AwaitOthers();
        world.Pass(world.UpTo(absl::Milliseconds(3)));
        world.WaitRound();
        world.AwaitOthers();
        world.BeginRound();
      }
    });
  });
}

// A mark that comes between the waiter's last look and its handing over is the rarest of all to be
// forgotten. Without time a round costs little.
TEST(RoundWaiterSimTest, AMarkThatComesAsTheWaiterHandsOverIsSeen) {
  ForEachSeed(500, [](uint64_t seed) {
    World world(seed, /*is_timeless=*/true);
    world.Run([&world] {
      for (int round = 0; round < 20; ++round) {
        world.Fork([&world] { world.Mark(kBuckets); });
        world.WaitRound();
        world.AwaitOthers();
        world.BeginRound();
      }
    });
  });
}

TEST(RoundWaiterSimTest, QuestionsAndOperationsOfTheUsersAreAnswered) {
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    world.Run([&world] {
      for (int round = 0; round < 2; ++round) {
        world.Fork([&world] { world.Mark(kBuckets); });
        world.Fork([&world] { world.Look(); });
        world.WaitRound();
        world.AwaitOthers();
        world.BeginRound();
        world.Fork([&world] { world.Look(); });
        const absl::Time soon = world.sim().Now() + absl::Minutes(1);
        EXPECT_TRUE(world.rounds().AgreeOnOrder(soon).ok());
        EXPECT_LE(world.sim().Now() - world.runner().moved_at(), kRetries);
        world.AwaitOthers();
      }
    });
  });
}

// A trainer that takes its marks back while the scheduler's thread is at them: what was launched is
// complete and stays so, all else is marked once more, and no bucket is launched twice.
TEST(RoundWaiterSimTest, MarksAreTakenBackBesideTheirRelease) {
  size_t taken_back = 0, kept = 0;
  ForEachSeed(600, [&](uint64_t seed) {
    World world(seed);
    world.Run([&] {
      for (int round = 0; round < 3; ++round) {
        const size_t marks = world.sim().Uniform(kBuckets + 1);
        world.Mark(marks, /*hurries=*/true);
        world.Pass(world.UpTo(absl::Microseconds(100)));
        const absl::Time asked = world.sim().Now();
        world.ForgetMarks();
        const absl::StatusOr<std::vector<BucketId>> complete =
            world.rounds().TakeBackMarks(asked + absl::Minutes(1));
        ASSERT_TRUE(complete.ok()) << complete.status();
        EXPECT_LE(world.sim().Now() - std::max(asked, world.runner().moved_at()), kRetries)
            << "the question was slept through";
        EXPECT_EQ(world.runner().running(), 0u) << "answered while a bucket was under way";
        EXPECT_EQ(complete->size(), world.launched()) << "another set than was launched";
        kept += complete->size();
        taken_back += marks - complete->size();
        world.MarkAllBut(*complete);
        world.WaitRound();
        EXPECT_EQ(world.launched(), kBuckets);
        world.BeginRound();
      }
    });
  });
  EXPECT_GT(taken_back, 0u);
  EXPECT_GT(kept, 0u);
}

// A call that returns as the driver goes to sleep is the one whose answer might be slept through.
TEST(RoundWaiterSimTest, TheEndOfACallIsSeenByWhoeverDrives) {
  ForEachSeed(800, [](uint64_t seed) {
    World world(seed);
    world.call_takes = [&world] { return world.UpTo(absl::Milliseconds(4)); };
    world.Run([&world] {
      for (int round = 0; round < 3; ++round) {
        world.Fork([&world] { world.Mark(kBuckets); });
        if (world.Chance(2)) world.AwaitOthers();
        world.Pass(world.UpTo(absl::Milliseconds(3)));
        world.WaitRound();
        world.AwaitOthers();
        world.BeginRound();
      }
    });
  });
}

TEST(RoundWaiterSimTest, AnAbortEndsTheRoundOnceTheCallUnderWayHasReturned) {
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    world.call_takes = [&world] { return world.UpTo(absl::Milliseconds(20)); };
    world.Run([&world] {
      world.runner().next_takes = [] { return kNever; };
      world.Mark(kBuckets);
      absl::Time aborted;
      world.Fork([&] {
        world.Pass(world.UpTo(absl::Milliseconds(20)));
        aborted = world.sim().Now();
        world.rounds().Abort(absl::UnavailableError("rank 1 has died"));
      });
      const absl::Status status = world.rounds().WaitRound(world.sim().Now() + absl::Minutes(1));
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_LE(world.sim().Now() - std::max(aborted, world.returned_at()), kRetries);
      world.AwaitOthers();
    });
  });
}

// What never comes: the end of an operation, or the mark of a tensor.
// Threads: one. Owns: nothing.
struct Standing {
  explicit Standing(World& world) {
    world.runner().abort_takes = world.UpTo(absl::Milliseconds(1));
    const size_t marks = world.sim().Uniform(kBuckets + 1);
    const size_t most_ends = std::min(marks, kBuckets - 1);
    world.runner().next_takes = [&world, ends = world.sim().Uniform(most_ends + 1)]() mutable {
      return ends-- == 0 ? kNever : world.UpTo(absl::Milliseconds(2));
    };
    world.Fork([&world, marks] { world.Mark(marks); });
    // Marks and the end of a round that fails may not meet.
    world.AwaitOthers();
  }
};

TEST(RoundWaiterSimTest, ADeadlineIsSeenInTime) {
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    world.Run([&world] {
      const Standing standing(world);
      const absl::Time deadline = world.sim().Now() + world.UpTo(absl::Milliseconds(20));
      const absl::Status status = world.rounds().WaitRound(deadline);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_GE(world.sim().Now(), deadline);
      EXPECT_LE(world.sim().Now() - deadline, kTimerDelay + world.runner().abort_takes);
      world.BeginRound();
      const absl::Time again = world.sim().Now();
      EXPECT_FALSE(world.rounds().WaitRound(again + absl::Minutes(1)).ok());
      EXPECT_LE(world.sim().Now() - again, kRetries);
    });
  });
}

TEST(RoundWaiterSimTest, AnInterruptIsSeenInTime) {
  SetInterruptCheck(&CheckAtThatTime, absl::ZeroDuration());
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    world.Run([&world] {
      const Standing standing(world);
      interrupt_at = world.sim().Now() + world.UpTo(absl::Milliseconds(20));
      const absl::Status status = world.rounds().WaitRound(world.sim().Now() + absl::Minutes(1));
      EXPECT_TRUE(IsInterrupted(status)) << status;
      EXPECT_LE(world.sim().Now() - interrupt_at,
                kInterruptInterval + kTimerDelay + world.runner().abort_takes);
      interrupt_at = absl::InfiniteFuture();
    });
  });
  SetInterruptCheck(nullptr);
}

std::function<void()> handle_signal;
absl::Status CheckThatHandles() {
  handle_signal();
  return absl::OkStatus();
}

// The peers wait for this rank's part, however long a handler takes.
TEST(RoundWaiterSimTest, TheSchedulersThreadDrivesWhileASignalIsHandled) {
  SetInterruptCheck(&CheckThatHandles, absl::ZeroDuration());
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    handle_signal = [&world] { world.Pass(world.UpTo(absl::Milliseconds(20))); };
    world.Run([&world] {
      for (int round = 0; round < 3; ++round) {
        world.Fork([&world] { world.Mark(kBuckets); });
        if (world.Chance(2)) world.AwaitOthers();
        const absl::Status status = world.rounds().WaitRound(world.sim().Now() + absl::Minutes(1));
        EXPECT_TRUE(status.ok()) << status;
        world.AwaitOthers();
        world.BeginRound();
      }
    });
  });
  SetInterruptCheck(nullptr);
}

TEST(RoundWaiterSimTest, AnAbortEndsTheRoundAtOnce) {
  ForEachSeed(400, [](uint64_t seed) {
    World world(seed);
    world.Run([&world] {
      const Standing standing(world);
      absl::Time aborted;
      world.Fork([&] {
        world.Pass(world.UpTo(absl::Milliseconds(20)));
        aborted = world.sim().Now();
        world.rounds().Abort(absl::UnavailableError("rank 1 has died"));
      });
      const absl::Status status = world.rounds().WaitRound(world.sim().Now() + absl::Minutes(1));
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_LE(world.sim().Now() - aborted, world.runner().abort_takes + kRetries);
      world.AwaitOthers();
    });
  });
}

}  // namespace
}  // namespace pelton
