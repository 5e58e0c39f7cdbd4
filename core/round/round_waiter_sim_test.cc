// The waiter that drives, the scheduler's own thread, and threads that mark tensors, ask and abort:
// code of the product, switched by a seed before each atomic access, in virtual time. Nothing that
// one of them does takes time, but for the operations and for what the test waits for. So whatever
// comes late by more than a retry was slept through.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/actor/backoff.h"
#include "core/actor/event_source.h"
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
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr size_t kBuckets = 4;
// The waiter looks again after 50 us where it has found the scheduler busy; now and then it finds
// it busy again.
constexpr absl::Duration kRetries = absl::Microseconds(200);
// A timer of the scheduler's thread does not end a park on the runner, which has 1 ms.
constexpr absl::Duration kTimerDelay = absl::Microseconds(1'200);
constexpr absl::Duration kNever = absl::InfiniteDuration();

// Whether the thread that runs here is an executor's.
bool IsExecutors() {
  const ThreadExecutor* const executor = ThreadExecutor::SwapCurrent(nullptr);
  ThreadExecutor::SwapCurrent(executor);
  return executor != nullptr;
}

// A runner whose operations take as long as the test says. One thread at a time may be in it, but
// for Wake, Abort and Missing.
// Threads: those of the simulation. Owns: nothing.
class SimRunner final : public OperationRunner, public EventSource {
 public:
  explicit SimRunner(SimExecutor& sim) : sim_(sim) { sim_.AddEventSource(this); }
  ~SimRunner() override { sim_.RemoveEventSource(this); }

  std::function<absl::Duration()> next_takes;  // of the operation that is launched
  std::function<void(BucketId)> on_launch = [](BucketId) {};
  std::function<void()> on_slept_through = [] {};
  absl::Duration abort_takes;

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream&) override {
    const Inside inside(*this);
    if (!reason_.ok()) return reason_;
    on_launch(operation.bucket);
    const absl::Duration takes = next_takes();
    running_.insert(++launched_);
    if (takes != kNever) due_.emplace(sim_.Now() + takes, launched_);
    return Completion{launched_};
  }
  bool Progress() override {
    const Inside inside(*this);
    if (arrived_.empty()) return false;
    worst_delay_ = std::max(worst_delay_, sim_.Now() - arrived_at_);
    for (const uint64_t ticket : std::exchange(arrived_, {})) running_.erase(ticket);
    moved_at_ = sim_.Now();
    if (IsExecutors()) moved_by_executor_at_ = moved_at_;
    return true;
  }
  State Query(Completion completion) override {
    const Inside inside(*this);
    return running_.contains(completion.ticket) ? State{} : State{true, reason_};
  }
  void Park(absl::Time until) override {
    const Inside inside(*this);
    WaitHook::Current()->WaitUntil([this] { return is_rung_; }, until);
    if (!std::exchange(is_rung_, false)) on_slept_through();
  }
  void Wake() override {
    Pause();
    is_rung_ = true;
  }
  void Abort(const absl::Status& reason) override {
    Pause();
    if (!reason_.ok()) return;
    reason_ = reason;
    due_.clear();
    for (const uint64_t ticket : running_) due_.emplace(sim_.Now() + abort_takes, ticket);
    is_rung_ = true;
  }
  std::vector<Rank> Missing() const override { return {Rank(1)}; }

  absl::Time NextEventTime() override {
    return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
  }
  void RunDue(absl::Time now) override {
    for (; !due_.empty() && due_.begin()->first <= now; due_.erase(due_.begin())) {
      if (arrived_.empty()) arrived_at_ = now;
      arrived_.insert(due_.begin()->second);
    }
    is_rung_ = true;
  }

  size_t running() const { return running_.size(); }
  bool is_aborted() const { return !reason_.ok(); }
  // How late an operation's end was seen, at worst; when the last one was, by anybody or by the
  // executor's thread.
  absl::Duration worst_delay() const { return worst_delay_; }
  absl::Time moved_at() const { return moved_at_; }
  absl::Time moved_by_executor_at() const { return moved_by_executor_at_; }

 private:
  // One thread's call. Threads: the one that made it. Owns: its being the only one.
  struct Inside {
    explicit Inside(SimRunner& runner) : runner(runner) {
      EXPECT_FALSE(std::exchange(runner.is_used_, true)) << "two threads drive";
      Pause();
    }
    ~Inside() { runner.is_used_ = false; }
    SimRunner& runner;
  };
  static void Pause() { WaitHook::Current()->Pause(); }

  SimExecutor& sim_;
  uint64_t launched_ = 0;
  std::set<uint64_t> running_, arrived_;
  std::multimap<absl::Time, uint64_t> due_;
  absl::Status reason_;
  bool is_rung_ = false;
  bool is_used_ = false;
  absl::Time arrived_at_;
  absl::Time moved_at_ = absl::InfinitePast();
  absl::Time moved_by_executor_at_ = absl::InfinitePast();
  absl::Duration worst_delay_;
};

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
  StageKind kind() const override { return StageKind::kTransform; }

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
    marked_.assign(kBuckets, absl::InfiniteFuture());
    launched_ = 0;
  }
  // Marks `count` tensors in any order.
  void Mark(size_t count) {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < kBuckets; ++i) slots.push_back(static_cast<int32_t>(i));
    while (count-- > 0) {
      const auto place = slots.begin() + static_cast<ptrdiff_t>(sim_.Uniform(slots.size()));
      const SlotId slot(*place);
      slots.erase(place);
      marked_[static_cast<size_t>(rounds_->plan().slot(slot).bucket.value())] = sim_.Now();
      EXPECT_TRUE(rounds_->MarkReady(slot).ok());
      Pass(UpTo(absl::Milliseconds(2)));
    }
  }
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
                kInterruptInterval + world.runner().abort_takes + kRetries);
      interrupt_at = absl::InfiniteFuture();
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
