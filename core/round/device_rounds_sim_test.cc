// Rounds of buckets on a device whose work ends at times that a seed chooses, or fails, or never
// ends: whose memory is whose at each time, what the host waits for, and what it is told.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/round/model_rounds.h"
#include "core/round/sim_device.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kBuckets = 3;
// More than all work of a run takes, so that only what never ends is overdue.
constexpr absl::Duration kTimeout = absl::Milliseconds(500);

// One rank, its trainer and its device. `wrong` is what it did that it must not.
// Threads: the test's. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed, DeviceMistake mistake = DeviceMistake::kNone)
      : sim_(seed), device_(sim_, mistake), runner_(sim_, device_, mistake) {
    ModelRoundsOptions options = DeviceRoundsOptions(device_, runner_);
    options.executor = &sim_;
    options.operation_timeout = kTimeout;
    options.on_failure = [this](const absl::Status& status) {
      failures.push_back(status);
      told_at = sim_.Now();
    };
    rounds_ = *ModelRounds::Create(DevicePlan(kBuckets), std::move(options));
  }

  // Writes each tensor on the caller's stream, marks it, and waits for the round.
  absl::Status RunRound() {
    for (std::vector<SlotId> left = AllSlots(kBuckets); !left.empty();) {
      const SlotId slot = TakeAny(sim_, left);
      Write(rounds_->plan().slot(slot).bucket);
      if (!rounds_->MarkReady(slot).ok()) Note("a mark is refused");
      if (sim_.Uniform(2) == 0) sim_.RunFor(UpTo(absl::Milliseconds(1)));
    }
    const absl::Time since = sim_.Now();
    const size_t launched = runner_.operations.size();
    const absl::Status status = rounds_->WaitRound(since + absl::Minutes(1));
    if (!status.ok()) return status;
    ++complete_;
    if (runner_.operations.size() != complete_ * kBuckets) Note("a bucket is not launched once");
    for (size_t i = launched; i < runner_.operations.size(); ++i) {
      if (runner_.operations[i].bucket != BucketId(static_cast<int32_t>(i % kBuckets))) {
        Note("buckets are launched in another order");
      }
    }
    if (sim_.Now() > std::max(since, runner_.last_follows())) Note("the host waits for the device");
    return status;
  }
  // Goes through what was launched so far.
  void CheckMarks() {
    for (size_t i = checked_; i < runner_.operations.size(); ++i) {
      const OnStream& each = runner_.operations[i];
      if (each.begins < device_.marked(each.bucket)) Note("an operation comes before its tensors");
    }
    checked_ = runner_.operations.size();
  }
  void Replan() {
    const absl::Status moved = rounds_->Replan(AllSlots(kBuckets), sim_.Now() + absl::Minutes(1));
    if (!moved.ok()) Note(absl::StrCat("the plan does not change: ", moved.ToString()));
    if (!runner_.is_idle()) Note("the plan changes while the device is at the old one");
  }

  SimExecutor& sim() { return sim_; }
  SimDeviceRunner& runner() { return runner_; }
  void End() { rounds_.reset(); }
  absl::Duration UpTo(absl::Duration most) {
    const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(most));
    return absl::Nanoseconds(static_cast<int64_t>(sim_.Uniform(nanos + 1)));
  }
  void Note(std::string what) { wrong = wrong.empty() ? std::move(what) : wrong; }

  std::string wrong;  // the first
  std::vector<absl::Status> failures;
  absl::Time told_at = absl::InfinitePast();  // of the last failure

 private:
  // Puts work on the caller's stream that writes the bucket at its end.
  void Write(BucketId bucket) {
    const absl::Time begins = std::max(device_.caller, sim_.Now());
    if (runner_.IsAt(bucket, begins)) Note("a bucket is written while an operation is at it");
    device_.caller = begins + UpTo(absl::Milliseconds(2));
  }

  SimExecutor sim_;
  SimDevice device_;
  SimDeviceRunner runner_;
  std::unique_ptr<ModelRounds> rounds_;
  uint64_t complete_ = 0;
  size_t checked_ = 0;
};

// Some rounds that end well, now and then with another plan between. What was wrong, or "".
std::string WrongIn(uint64_t seed, DeviceMistake mistake) {
  World world(seed, mistake);
  for (int round = 0; round < 4; ++round) {
    const absl::Status status = world.RunRound();
    if (!status.ok()) world.Note(status.ToString());
    world.CheckMarks();
    if (world.sim().Uniform(3) == 0) world.Replan();
  }
  world.sim().RunFor(2 * kTimeout);
  if (!world.failures.empty()) world.Note("a failure, and nothing has failed");
  return world.wrong;
}

TEST(DeviceRoundsSimTest, RoundsEndInTheOrderOfTheStreamsAndTheHostWaitsForNone) {
  ForEachSeed(2'000, [](uint64_t seed) { EXPECT_EQ(WrongIn(seed, DeviceMistake::kNone), ""); });
}

TEST(DeviceRoundsSimTest, MistakesAreFound) { ExpectMistakesAreFound(WrongIn); }

// One operation of the run ends in another way than well, and rounds go on until one fails.
struct Told {
  std::string wrong;
  absl::Status status;      // what a failure said
  absl::Duration too_late;  // after the device's end of it, or when it was due
};
Told OneEndsBadly(uint64_t seed, Fate fate, DeviceMistake mistake = DeviceMistake::kNone) {
  World world(seed, mistake);
  const uint64_t which = world.sim().Uniform(kBuckets * 3);
  world.runner().fate = [which, fate, launched = uint64_t{0}]() mutable {
    return launched++ == which ? fate : Fate::kEnds;
  };
  absl::Status status;
  absl::Time due = absl::InfiniteFuture();
  for (int round = 0; round < 3 && status.ok(); ++round) {
    status = world.RunRound();
    if (world.runner().operations.size() > which && due == absl::InfiniteFuture()) {
      const OnStream& bad = world.runner().operations[which];
      due = fate == Fate::kFails ? bad.ends : bad.follows + kTimeout;
    }
  }
  world.sim().RunFor(4 * kTimeout);
  Told told;
  told.wrong = world.wrong;
  if (world.failures.size() != 1) {
    told.wrong = absl::StrCat(world.failures.size(), " failures are told of");
    return told;
  }
  told.status = world.failures[0];
  told.too_late = world.told_at - due;
  const absl::Status later = world.RunRound();
  if (later.ok()) told.wrong = "a round after that ends well";
  if (!world.runner().is_idle()) told.wrong = "something is left on the device";
  world.End();
  return told;
}

TEST(DeviceRoundsSimTest, AFailureOnTheDeviceIsToldOnceAndAtOnce) {
  ForEachSeed(1'000, [](uint64_t seed) {
    const Told told = OneEndsBadly(seed, Fate::kFails);
    EXPECT_EQ(told.wrong, "");
    EXPECT_TRUE(absl::StrContains(told.status.message(), kBroken)) << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "allreduce")) << told.status;
    // At once between rounds; in one, when what is in flight has ended, too.
    EXPECT_LE(told.too_late, kAbortTakes);
  });
}
TEST(DeviceRoundsSimTest, TheWatchNamesAnOperationThatNeverEndsAndTheRanksThatAreMissing) {
  ForEachSeed(1'000, [](uint64_t seed) {
    const Told told = OneEndsBadly(seed, Fate::kNeverEnds);
    EXPECT_EQ(told.wrong, "");
    EXPECT_TRUE(absl::IsDeadlineExceeded(told.status)) << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "is not done in time; waiting for rank 1"))
        << told.status;
    EXPECT_TRUE(absl::StrContains(told.status.message(), "allreduce")) << told.status;
    EXPECT_LE(told.too_late, kAbortTakes);
    EXPECT_GE(told.too_late, absl::ZeroDuration());
  });
}
TEST(DeviceRoundsSimTest, AFailureThatIsForgottenIsFound) {
  bool is_found = false;
  for (uint64_t seed = 1; seed <= 20 && !is_found; ++seed) {
    is_found =
        OneEndsBadly(seed, Fate::kFails, DeviceMistake::kForgets).wrong == "0 failures are told of";
  }
  EXPECT_TRUE(is_found);
}

}  // namespace
}  // namespace pelton
