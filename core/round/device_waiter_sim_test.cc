// The waiter that drives rounds on a device, the scheduler's own thread, and threads that mark
// tensors, ask and abort: code of the product, switched by a seed before each atomic access, in
// virtual time. What the device does outlasts the waits for it, so that somebody must look at it
// when the waiter has gone. Nothing but the device and the test's own waits takes time. So whatever
// comes late by more than a retry was slept through.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/backoff.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/round/model_rounds.h"
#include "core/round/sim_device.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kBuckets = 3;
constexpr int kRounds = 3;
// More than all work of a run takes, so that only what never ends is overdue.
constexpr absl::Duration kTimeout = absl::Milliseconds(100);
// The waiter looks again after 50 us where it has found the scheduler busy; now and then it finds
// it busy again.
constexpr absl::Duration kRetries = absl::Microseconds(200);
// A timer of the scheduler's thread does not end a park on the runner, which has 1 ms.
constexpr absl::Duration kTimerDelay = absl::Microseconds(1'200);

// One rank, its trainer as a thread, its device, and the scheduler on a thread of its own. `wrong`
// is what it did that it must not.
// Threads: the test's, which runs those of the simulation. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed, DeviceMistake mistake = DeviceMistake::kNone)
      : sim_(seed),
        device_(sim_, mistake),
        runner_(sim_, device_, mistake),
        hurries_(Chance(2)),
        threads_(sim_) {
    // How many spins a wait has depends on the machine's cores, unless there are none.
    SetProcessesOnHost(1'000);
  }

  void Run(std::function<void()> trainer) {
    threads_.Start(process_, [this, trainer = std::move(trainer)] {
      ModelRoundsOptions options = DeviceRoundsOptions(device_, runner_);
      options.operation_timeout = kTimeout;
      options.on_failure = [this](const absl::Status& status) {
        failures.push_back(status);
        told_at = sim_.Now();
      };
      rounds_ = *ModelRounds::Create(DevicePlan(kBuckets), std::move(options));
      trainer();
      const absl::Time asked = sim_.Now();
      rounds_.reset();
      if (sim_.Now() > std::max(asked, runner_.last_end()) + kTimerDelay) Note("it ends late");
    });
    if (!threads_.RunUntilAllEnd()) Note("a thread waits for what does not come");
    // What is aborted does not end in the order of the stream.
    const absl::Duration most = runner_.is_aborted() ? kAbortTakes + kRetries : kRetries;
    if (runner_.worst_look() > most) Note("nobody looks at what has ended on the device");
    if (!runner_.is_idle()) Note("something is left on the device");
  }

  // The rest is for the threads.

  bool Chance(uint64_t one_in) { return sim_.Uniform(one_in) == 0; }
  // Often no time at all, so that what takes some meets what takes none.
  absl::Duration UpTo(absl::Duration most) {
    if (Chance(2)) return absl::ZeroDuration();
    const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(most));
    return absl::Nanoseconds(static_cast<int64_t>(sim_.Uniform(nanos + 1)));
  }
  void Pass(absl::Duration time) {
    threads_.WaitUntil([] { return false; }, sim_.Now() + time);
  }
  // The same up to `most`, or until that operation comes in the order of the device's stream, when
  // whoever drives looks at it, too.
  void PassOrMeet(uint64_t operation, absl::Duration most) {
    const auto meets = [this, operation] {
      const std::vector<OnStream>& all = runner_.operations;
      return operation < all.size() && all[operation].follows <= sim_.Now();
    };
    if (Chance(2)) return Pass(UpTo(most));
    threads_.WaitUntil(meets, sim_.Now() + most);
  }
  // One more thread; AwaitOthers waits for its end.
  void Fork(std::function<void()> body) {
    ++others_;
    threads_.Run([this, body = std::move(body)] {
      body();
      --others_;
    });
  }
  void AwaitOthers() {
    threads_.WaitUntil([this] { return others_ == 0; }, absl::InfiniteFuture());
  }

  // Writes each tensor on the caller's stream, and marks it.
  void Mark() {
    for (std::vector<SlotId> left = AllSlots(kBuckets); !left.empty();) {
      const SlotId slot = TakeAny(sim_, left);
      Write(rounds_->plan().slot(slot).bucket);
      marked_at_ = sim_.Now();
      marked_[static_cast<size_t>(rounds_->plan().slot(slot).bucket.value())] = marked_at_;
      if (!rounds_->MarkReady(slot).ok()) Note("a mark is refused");
      if (!hurries_) Pass(UpTo(absl::Milliseconds(1)));
    }
  }
  absl::Status Wait() { return rounds_->WaitRound(sim_.Now() + absl::Minutes(1)); }
  // Waits for a round that is marked meanwhile, and ends well: at once, whatever the device does.
  void WaitRound() {
    const size_t launched = runner_.operations.size();
    Fork([this] { Mark(); });
    if (Chance(2)) AwaitOthers();
    const absl::Time since = sim_.Now();
    const absl::Status status = Wait();
    const absl::Time due = std::max({since, marked_at_, runner_.last_follows()});
    if (sim_.Now() > due + kRetries) Note("the host waits for the device");
    if (!status.ok()) Note(status.ToString());
    AwaitOthers();
    CheckLaunches(launched);
  }
  // The trainer drives the scheduler until the device is idle.
  void Replan() {
    const absl::Time asked = sim_.Now();
    const absl::Status moved = rounds_->Replan(AllSlots(kBuckets), asked + absl::Minutes(1));
    if (!moved.ok()) Note(absl::StrCat("the plan does not change: ", moved.ToString()));
    if (!runner_.is_idle()) Note("the plan changes while the device is at the old one");
    if (sim_.Now() > std::max(asked, runner_.last_end()) + kRetries) Note("the plan changes late");
  }
  // Asks what the round is at, which whoever has the scheduler's turn answers.
  void Look() {
    Pass(UpTo(absl::Milliseconds(5)));
    const absl::Time asked = sim_.Now();
    if (!rounds_->Look(asked + absl::Minutes(1)).ok()) Note("a question has no answer");
    if (sim_.Now() > asked + kRetries) Note("a question was slept through");
  }

  SimExecutor& sim() { return sim_; }
  SimDeviceRunner& runner() { return runner_; }
  ModelRounds& rounds() { return *rounds_; }
  void Note(std::string what) { wrong = wrong.empty() ? std::move(what) : wrong; }

  absl::Duration longest_write = absl::Milliseconds(2);  // of a tensor
  std::string wrong;                                     // the first
  std::vector<absl::Status> failures;
  absl::Time told_at = absl::InfinitePast();  // of the last failure

 private:
  // Of a round, of which that many operations come before.
  void CheckLaunches(size_t before) {
    const std::vector<OnStream>& all = runner_.operations;
    if (all.size() != before + kBuckets) return Note("a bucket is not launched once");
    absl::Time due = absl::InfinitePast();
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const size_t i = before + bucket;
      if (all[i].bucket != BucketId(static_cast<int32_t>(bucket))) Note("another order");
      if (all[i].begins < device_.marked(all[i].bucket)) {
        Note("an operation comes before its tensors");
      }
      due = std::max(due, marked_[bucket]);
      if (bucket > 0) due = std::max(due, all[i - 1].launched);
      if (bucket > 1) due = std::max(due, all[i - 2].follows);  // two at once
      if (all[i].launched > due + kRetries) Note("a bucket that was ready was slept through");
    }
  }
  // Puts work on the caller's stream that writes the bucket at its end.
  void Write(BucketId bucket) {
    const absl::Time begins = std::max(device_.caller, sim_.Now());
    if (runner_.IsAt(bucket, begins)) Note("a bucket is written while an operation is at it");
    device_.caller = begins + UpTo(longest_write);
  }

  SimThreads::Process process_;
  SimExecutor sim_;
  SimDevice device_;
  SimDeviceRunner runner_;
  const bool hurries_;  // between marks
  std::unique_ptr<ModelRounds> rounds_;
  absl::Time marked_at_ = absl::InfinitePast();  // the last tensor
  absl::Time marked_[kBuckets];                  // each bucket
  int others_ = 0;
  SimThreads threads_;  // last: what it unwinds uses the others
};

// Rounds that end well, now and then with another plan between, and with questions. What was wrong,
// or "".
std::string WrongIn(uint64_t seed, DeviceMistake mistake) {
  World world(seed, mistake);
  world.Run([&world] {
    for (int round = 0; round < kRounds; ++round) {
      if (world.Chance(2)) world.Fork([&world] { world.Look(); });
      world.WaitRound();
      if (world.Chance(3)) world.Replan();
      world.Pass(world.UpTo(absl::Milliseconds(5)));
    }
    if (world.Chance(2)) world.Pass(2 * kTimeout);
  });
  if (!world.failures.empty()) world.Note("a failure, and nothing has failed");
  return world.wrong;
}

TEST(DeviceWaiterSimTest, RoundsEndInTheOrderOfTheStreamsAndNobodySleepsThroughAnything) {
  ForEachSeed(400, [](uint64_t seed) { EXPECT_EQ(WrongIn(seed, DeviceMistake::kNone), ""); });
}

TEST(DeviceWaiterSimTest, MistakesAreFound) { ExpectMistakesAreFound(WrongIn); }

// One operation of the run ends in another way than well, and rounds go on until one fails.
struct Told {
  std::string wrong;
  absl::Status status;         // what a failure said
  absl::Status of_wait;        // what the trainer's last wait said
  absl::Duration too_late;     // after the device's end of it, or when it was due
  absl::Duration waited_late;  // the same of the wait, where it was under way then
};
Told OneEndsBadly(uint64_t seed, Fate fate, DeviceMistake mistake = DeviceMistake::kNone) {
  World world(seed, mistake);
  const uint64_t which = world.sim().Uniform(kBuckets * kRounds);
  world.runner().fate = [which, fate, launched = uint64_t{0}]() mutable {
    return launched++ == which ? fate : Fate::kEnds;
  };
  Told told;
  world.Run([&] {
    absl::Time due = absl::InfiniteFuture();
    absl::Time waited_until;
    absl::Status status;
    for (int round = 0; round < kRounds && status.ok(); ++round) {
      const absl::Time begun = world.sim().Now();
      world.Mark();
      status = world.Wait();
      waited_until = world.sim().Now();
      if (world.runner().operations.size() > which && due == absl::InfiniteFuture()) {
        const OnStream& bad = world.runner().operations[which];
        due = fate == Fate::kFails       ? bad.ends
              : fate == Fate::kNeverEnds ? bad.follows + kTimeout
                                         : begun + kTimeout;
      }
      if (status.ok()) world.Pass(world.UpTo(absl::Milliseconds(5)));
    }
    world.Pass(2 * kTimeout);
    told.too_late = world.told_at - due;
    told.waited_late = status.ok() ? absl::ZeroDuration() : waited_until - due;
    told.of_wait = status;
    const absl::Time again = world.sim().Now();
    world.Mark();
    if (world.Wait().ok()) world.Note("a round after that ends well");
    if (world.sim().Now() > again + kBuckets * absl::Milliseconds(1) + kRetries) {
      world.Note("a round after that ends late");
    }
  });
  if (world.failures.size() != 1) {
    world.Note(absl::StrCat(world.failures.size(), " failures are told of"));
  } else {
    told.status = world.failures[0];
  }
  told.wrong = world.wrong;
  return told;
}

TEST(DeviceWaiterSimTest, AFailureOnTheDeviceIsToldOnceAndAtOnce) {
  ForEachSeed(300, [](uint64_t seed) {
    const Told told = OneEndsBadly(seed, Fate::kFails);
    EXPECT_EQ(told.wrong, "");
    EXPECT_TRUE(absl::StrContains(told.status.message(), kBroken)) << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "allreduce")) << told.status;
    EXPECT_LE(told.too_late, kAbortTakes + kRetries);
  });
}
TEST(DeviceWaiterSimTest, AnOperationThatNeverEndsIsNamedInTime) {
  ForEachSeed(150, [](uint64_t seed) {
    const Told told = OneEndsBadly(seed, Fate::kNeverEnds);
    EXPECT_EQ(told.wrong, "");
    EXPECT_TRUE(absl::IsDeadlineExceeded(told.status)) << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "is not done in time; waiting for rank 1"))
        << told.status;
    EXPECT_LE(told.too_late, kAbortTakes + kTimerDelay);
    EXPECT_GE(told.too_late, absl::ZeroDuration());
  });
}
// The trainer is at the wait all the time, and drives.
TEST(DeviceWaiterSimTest, AnOperationThatNeverComesInTheStreamsOrderEndsTheWaitInTime) {
  ForEachSeed(150, [](uint64_t seed) {
    const Told told = OneEndsBadly(seed, Fate::kNeverFollows);
    EXPECT_EQ(told.wrong, "");
    EXPECT_TRUE(absl::IsDeadlineExceeded(told.status)) << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "is not done in time; waiting for rank 1"))
        << told.status;
    EXPECT_EQ(told.of_wait, told.status);
    // Launches come later than the round's begin, and so do time-outs.
    const absl::Duration most = kBuckets * absl::Milliseconds(1) + kAbortTakes + kTimerDelay;
    EXPECT_LE(told.waited_late, most + absl::Milliseconds(1));
    EXPECT_GE(told.waited_late, absl::ZeroDuration());
  });
}
TEST(DeviceWaiterSimTest, AFailureThatIsForgottenIsFound) {
  std::string wrong;
  for (uint64_t seed = 1; seed <= 20 && wrong.empty(); ++seed) {
    wrong = OneEndsBadly(seed, Fate::kFails, DeviceMistake::kForgets).wrong;
  }
  EXPECT_EQ(wrong, "a round after that ends well");
}

TEST(DeviceWaiterSimTest, ADeadlineOfTheWaitIsSeenInTime) {
  ForEachSeed(300, [](uint64_t seed) {
    World world(seed);
    const uint64_t which = world.sim().Uniform(kBuckets);
    world.runner().fate = [which, launched = uint64_t{0}]() mutable {
      return launched++ == which ? Fate::kNeverFollows : Fate::kEnds;
    };
    world.Run([&world] {
      world.Mark();
      const absl::Time deadline = world.sim().Now() + world.UpTo(absl::Milliseconds(20));
      const absl::Status status = world.rounds().WaitRound(deadline);
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_GE(world.sim().Now(), deadline);
      EXPECT_LE(world.sim().Now() - deadline, kTimerDelay + kAbortTakes);
    });
    EXPECT_EQ(world.wrong, "");
  });
}

// The runner ends, as it does when a peer is lost, beside whoever drives it: in a round or between
// two. What was on the device has not ended well, and that is told of.
TEST(DeviceWaiterSimTest, AnEndOfTheRunnerIsToldOfWhateverTheDeviceIsAt) {
  int between = 0;
  ForEachSeed(800, [&between](uint64_t seed) {
    World world(seed);
    // So short that all operations but the last one may have ended.
    world.longest_write = absl::ZeroDuration();
    world.runner().longest = absl::Microseconds(200);
    world.Run([&] {
      absl::Time aborted = absl::InfiniteFuture();
      bool was_idle = false;
      world.Fork([&] {
        // Most often the last one of a round, after which nothing else would fail.
        const uint64_t round = world.sim().Uniform(kRounds);
        world.PassOrMeet((round + 1) * kBuckets - 1, absl::Milliseconds(8));
        was_idle = world.runner().is_idle();
        aborted = world.sim().Now();
        world.runner().Abort(absl::UnavailableError("rank 1 has died"));
      });
      absl::Status status;
      for (int round = 0; round < kRounds && status.ok() && aborted > world.sim().Now(); ++round) {
        world.Mark();
        status = world.Wait();
      }
      world.AwaitOthers();
      world.Pass(2 * kTimeout);
      if (was_idle && status.ok()) return;  // nothing was left to fail
      between += status.ok() ? 1 : 0;
      if (world.failures.size() != 1) {
        world.Note(absl::StrCat(world.failures.size(), " failures are told of"));
        return;
      }
      EXPECT_TRUE(absl::IsUnavailable(world.failures[0])) << world.failures[0];
      if (!was_idle && world.told_at > aborted + kAbortTakes + kRetries) world.Note("told late");
    });
    EXPECT_EQ(world.wrong, "");
  });
  EXPECT_GT(between, 0);
}

}  // namespace
}  // namespace pelton
