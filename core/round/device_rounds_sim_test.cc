// Rounds of buckets on a device whose work ends at times that a seed chooses, or fails, or never
// ends: whose memory is whose at each time, what the host waits for, and what it is told.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int32_t kBuckets = 3;
// More than all work of a run takes, so that only what never ends is overdue.
constexpr absl::Duration kTimeout = absl::Milliseconds(500);
// At most: until operations that were aborted have ended.
constexpr absl::Duration kAbortTakes = absl::Milliseconds(1);
constexpr char kBroken[] = "the device has fallen off the bus";

// What the product might forget, or do in another way: the device does as if it had.
enum class Mistake {
  kNone,
  kAwaitsNoMark,     // before it puts a bucket's operations on the device
  kJoinsNoPipeline,  // when a round ends
  kHostWaits,        // for the device, at each bucket
  kForgets,          // what is on the device when its bucket is complete
};
enum class Fate { kEnds, kFails, kNeverEnds };

// Both streams of a device, as the times at which what was put there ends.
// Threads: the simulation's. Owns: the memory it gave out.
class SimDevice final : public DeviceQueue {
 public:
  SimDevice(SimExecutor& sim, Mistake mistake) : sim_(sim), mistake_(mistake) {}

  absl::StatusOr<std::byte*> Allocate(size_t size_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(size_bytes));
    return memory_.back().get();
  }
  void Release(std::byte* memory) override {
    std::erase_if(memory_, [memory](const auto& each) { return each.get() == memory; });
  }
  Stream& stream() override { return stream_; }
  absl::Status Enqueue(absl::FunctionRef<absl::Status(Stream&)> work) override {
    return work(stream_);
  }
  absl::Status Zero(std::byte*, size_t) override { return absl::OkStatus(); }
  absl::Status MarkReady(BucketId bucket) override {
    marked_[bucket] = std::max(caller, sim_.Now());
    return absl::OkStatus();
  }
  absl::Status JoinPipelines() override {
    if (mistake_ != Mistake::kJoinsNoPipeline) caller = std::max(caller, pipelines);
    return absl::OkStatus();
  }
  absl::Status AwaitReady(BucketId bucket) override {
    if (mistake_ != Mistake::kAwaitsNoMark) pipelines = std::max(pipelines, marked(bucket));
    return absl::OkStatus();
  }
  absl::Status Fill(std::byte*, uint8_t, size_t) override { return absl::OkStatus(); }
  absl::Status Write(std::byte*, const void*, size_t, absl::Time) override { return Unexpected(); }
  absl::Status Read(void*, const std::byte*, size_t, absl::Time) override { return Unexpected(); }

  // The place of the bucket's last mark.
  absl::Time marked(BucketId bucket) const { return marked_.at(bucket); }

  // When all that is on the caller's stream has ended, and on the pipelines'.
  absl::Time caller = absl::InfinitePast();
  absl::Time pipelines = absl::InfinitePast();

 private:
  // Threads: one. Owns: nothing.
  class DeviceStream final : public Stream {
   public:
    DeviceKind device() const override { return DeviceKind::kCuda; }
  };
  static absl::Status Unexpected() { return absl::InternalError("nobody copies here"); }

  SimExecutor& sim_;
  const Mistake mistake_;
  DeviceStream stream_;
  std::map<BucketId, absl::Time> marked_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// An operation on the pipelines' stream.
struct OnStream {
  BucketId bucket;
  absl::Time follows;  // from then on later work on the stream comes after it
  absl::Time begins;
  absl::Time ends;
  absl::Status status;  // once it has ended
};

// Puts operations on the pipelines' stream. Threads: the simulation's. Owns: the operations.
class SimDeviceRunner final : public OperationRunner, public EventSource {
 public:
  SimDeviceRunner(SimExecutor& sim, SimDevice& device, Mistake mistake)
      : sim_(sim), device_(device), mistake_(mistake) {
    sim_.AddEventSource(this);
  }
  ~SimDeviceRunner() override { sim_.RemoveEventSource(this); }

  // Of the next operation.
  absl::AnyInvocable<Fate()> fate = [] { return Fate::kEnds; };
  absl::Duration longest = absl::Milliseconds(2);

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (!reason_.ok()) return reason_;
    EXPECT_EQ(&stream, &device_.stream());
    const Fate its = fate();
    // A stream takes one thing behind the other.
    const absl::Time before = last_follows();
    OnStream& put = operations.emplace_back();
    put.bucket = operation.bucket;
    put.follows = std::max(before, sim_.Now() + UpTo(absl::Microseconds(300)));
    put.begins = std::max(device_.pipelines, sim_.Now());
    put.ends = its == Fate::kNeverEnds ? absl::InfiniteFuture() : put.begins + UpTo(longest);
    if (its == Fate::kFails) put.status = absl::UnavailableError(kBroken);
    device_.pipelines = put.ends;
    return Completion{operations.size()};
  }
  bool Progress() override { return std::exchange(has_news_, false); }
  State Query(Completion completion) override {
    const OnStream& its = operations[completion.ticket - 1];
    if (its.ends <= sim_.Now()) return {true, its.status};
    // As a channel that keeps no list of what is on the device sees it.
    return {mistake_ == Mistake::kForgets, absl::OkStatus()};
  }
  State Follow(Completion completion, Stream& stream) override {
    const OnStream& its = operations[completion.ticket - 1];
    if (mistake_ == Mistake::kHostWaits || its.ends <= sim_.Now()) return Query(completion);
    return {its.follows <= sim_.Now(), absl::OkStatus()};
  }
  void Park(absl::Time) override {}
  void Wake() override {}
  void Abort(const absl::Status& reason) override {
    if (!reason_.ok()) return;
    reason_ = reason;
    for (OnStream& each : operations) {
      if (each.ends <= sim_.Now()) continue;
      each.follows = each.ends = sim_.Now() + UpTo(kAbortTakes);
      each.status = reason;
    }
    device_.pipelines = device_.caller = sim_.Now() + kAbortTakes;
  }
  std::vector<Rank> Missing() const override { return {Rank(1)}; }

  absl::Time NextEventTime() override {
    absl::Time next = absl::InfiniteFuture();
    for (const OnStream& each : operations) {
      for (const absl::Time time : {each.follows, each.ends}) {
        if (time > looked_at_) next = std::min(next, time);
      }
    }
    return next;
  }
  void RunDue(absl::Time now) override {
    looked_at_ = now;
    has_news_ = true;
  }

  absl::Time last_follows() const {
    absl::Time last = absl::InfinitePast();
    for (const OnStream& each : operations) last = std::max(last, each.follows);
    return last;
  }
  bool is_idle() const {
    return std::all_of(operations.begin(), operations.end(),
                       [this](const OnStream& each) { return each.ends <= sim_.Now(); });
  }

  std::vector<OnStream> operations;  // in the order of their launches

 private:
  absl::Duration UpTo(absl::Duration most) {
    const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(most));
    return absl::Nanoseconds(static_cast<int64_t>(1 + sim_.Uniform(nanos)));
  }

  SimExecutor& sim_;
  SimDevice& device_;
  const Mistake mistake_;
  absl::Status reason_;
  absl::Time looked_at_ = absl::InfinitePast();
  bool has_news_ = false;
};

// One rank, its trainer and its device. `wrong` is what it did that it must not.
// Threads: the test's. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed, Mistake mistake = Mistake::kNone)
      : sim_(seed), device_(sim_, mistake), runner_(sim_, device_, mistake) {
    ModelRoundsOptions options;
    options.executor = &sim_;
    options.runner = &runner_;
    options.device = &device_;
    options.operation_timeout = kTimeout;
    options.pipeline_factory = [](const BucketLayout& layout) {
      PipelineSpec spec;
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
      return Pipeline::Build(std::move(spec), layout);
    };
    options.on_failure = [this](const absl::Status& status) {
      failures.push_back(status);
      told_at = sim_.Now();
    };
    rounds_ = *ModelRounds::Create(MakePlan(), std::move(options));
  }

  // Writes each tensor on the caller's stream, marks it, and waits for the round.
  absl::Status RunRound() {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < kBuckets; ++i) slots.push_back(i);
    while (!slots.empty()) {
      const auto place = slots.begin() + static_cast<ptrdiff_t>(sim_.Uniform(slots.size()));
      const SlotId slot(*place);
      slots.erase(place);
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
    std::vector<SlotId> order;
    for (int32_t i = 0; i < kBuckets; ++i) order.emplace_back(i);
    const absl::Status moved = rounds_->Replan(order, sim_.Now() + absl::Minutes(1));
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
  static Plan MakePlan() {
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < kBuckets; ++i) {
      tensors.push_back(
          {.name = absl::StrCat("t", i), .count = 100, .device = Device{DeviceKind::kCuda, 0}});
    }
    PlanOptions options;
    options.bucket_size_bytes = 400;
    return *Plan::Build(std::move(tensors), options);
  }
  // Puts work on the caller's stream that writes the bucket at its end.
  void Write(BucketId bucket) {
    const absl::Time begins = std::max(device_.caller, sim_.Now());
    for (const OnStream& each : runner_.operations) {
      if (each.bucket == bucket && each.ends > begins && each.status.ok()) {
        Note("a bucket is written while an operation is at it");
      }
    }
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
std::string WrongIn(uint64_t seed, Mistake mistake) {
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
  ForEachSeed(2'000, [](uint64_t seed) { EXPECT_EQ(WrongIn(seed, Mistake::kNone), ""); });
}

// What a mistake does, in the first of some seeds that shows it.
std::string FoundOf(Mistake mistake) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    if (std::string wrong = WrongIn(seed, mistake); !wrong.empty()) return wrong;
  }
  return "";
}
TEST(DeviceRoundsSimTest, AnOrderOfTheStreamsThatIsMissingIsFound) {
  EXPECT_EQ(FoundOf(Mistake::kAwaitsNoMark), "an operation comes before its tensors");
  EXPECT_EQ(FoundOf(Mistake::kJoinsNoPipeline), "a bucket is written while an operation is at it");
}
TEST(DeviceRoundsSimTest, AHostThatWaitsForTheDeviceIsFound) {
  EXPECT_EQ(FoundOf(Mistake::kHostWaits), "the host waits for the device");
}
TEST(DeviceRoundsSimTest, APlanThatChangesTooEarlyIsFound) {
  EXPECT_EQ(FoundOf(Mistake::kForgets), "the plan changes while the device is at the old one");
}

// One operation of the run ends in another way than well, and rounds go on until one fails.
struct Told {
  std::string wrong;
  absl::Status status;      // what a failure said
  absl::Duration too_late;  // after the device's end of it, or when it was due
};
Told OneEndsBadly(uint64_t seed, Fate fate, Mistake mistake = Mistake::kNone) {
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
        OneEndsBadly(seed, Fate::kFails, Mistake::kForgets).wrong == "0 failures are told of";
  }
  EXPECT_TRUE(is_found);
}

}  // namespace
}  // namespace pelton
