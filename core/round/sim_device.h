// A device in virtual time, for tests of rounds whose buckets lie on one.
#ifndef PELTON_CORE_ROUND_SIM_DEVICE_H_
#define PELTON_CORE_ROUND_SIM_DEVICE_H_

#include <algorithm>
#include <cstddef>
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
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/actor/sim_executor.h"
#include "core/actor/wait_hook.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {

constexpr char kBroken[] = "the device has fallen off the bus";
// At most: until operations that were aborted have ended.
constexpr absl::Duration kAbortTakes = absl::Milliseconds(1);

// What the product might forget, or do in another way: the device does as if it had.
enum class DeviceMistake {
  kNone,
  kAwaitsNoMark,     // before it puts a bucket's operations on the device
  kJoinsNoPipeline,  // when a round ends
  kHostWaits,        // for the device, at each bucket
  kForgets,          // what is on the device when its bucket is complete
};
// How an operation ends: well, or badly; never; or not even in the order of its stream.
enum class Fate { kEnds, kFails, kNeverEnds, kNeverFollows };

// Threads of the simulation may switch here.
inline void PauseOnDevice() {
  if (WaitHook* const hook = WaitHook::Current()) hook->Pause();
}

// Both streams of a device, as the times at which what was put there ends.
// Threads: the simulation's. Owns: the memory it gave out.
class SimDevice final : public DeviceQueue {
 public:
  SimDevice(SimExecutor& sim, DeviceMistake mistake) : sim_(sim), mistake_(mistake) {}

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
    PauseOnDevice();
    marked_[bucket] = std::max(caller, sim_.Now());
    return absl::OkStatus();
  }
  absl::Status JoinPipelines() override {
    PauseOnDevice();
    if (mistake_ != DeviceMistake::kJoinsNoPipeline) caller = std::max(caller, pipelines);
    return absl::OkStatus();
  }
  absl::Status AwaitReady(BucketId bucket) override {
    PauseOnDevice();
    if (mistake_ != DeviceMistake::kAwaitsNoMark) pipelines = std::max(pipelines, marked(bucket));
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
  const DeviceMistake mistake_;
  DeviceStream stream_;
  std::map<BucketId, absl::Time> marked_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// An operation on the pipelines' stream.
struct OnStream {
  BucketId bucket;
  absl::Time launched;
  absl::Time follows;  // from then on later work on the stream comes after it
  absl::Time begins;
  absl::Time ends;
  absl::Status status;  // once it has ended
  bool is_seen = false;
};

// Puts operations on the pipelines' stream. One thread at a time may be in it, but for Wake, Abort
// and Missing.
// Threads: the simulation's. Owns: the operations.
class SimDeviceRunner final : public OperationRunner, public EventSource {
 public:
  SimDeviceRunner(SimExecutor& sim, SimDevice& device, DeviceMistake mistake)
      : sim_(sim), device_(device), mistake_(mistake) {
    sim_.AddEventSource(this);
  }
  ~SimDeviceRunner() override { sim_.RemoveEventSource(this); }

  // Of the next operation.
  absl::AnyInvocable<Fate()> fate = [] { return Fate::kEnds; };
  absl::Duration longest = absl::Milliseconds(2);

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    const Inside inside(*this);
    if (!reason_.ok()) return reason_;
    EXPECT_EQ(&stream, &device_.stream());
    const Fate its = fate();
    // A stream takes one thing behind the other.
    const absl::Time before = last_follows();
    OnStream& put = operations.emplace_back();
    put.bucket = operation.bucket;
    put.launched = sim_.Now();
    put.follows = std::max(before, sim_.Now() + UpTo(absl::Microseconds(300)));
    if (its == Fate::kNeverFollows) put.follows = absl::InfiniteFuture();
    put.begins = std::max(device_.pipelines, sim_.Now());
    const bool ends = its == Fate::kEnds || its == Fate::kFails;
    put.ends = ends ? put.begins + UpTo(longest) : absl::InfiniteFuture();
    if (its == Fate::kFails) put.status = absl::UnavailableError(kBroken);
    device_.pipelines = put.ends;
    return Completion{operations.size()};
  }
  bool Progress() override {
    const Inside inside(*this);
    return std::exchange(has_news_, false);
  }
  State Query(Completion completion) override {
    const Inside inside(*this);
    return Look(completion);
  }
  State Follow(Completion completion, Stream&) override {
    const Inside inside(*this);
    const OnStream& its = operations[completion.ticket - 1];
    if (mistake_ == DeviceMistake::kHostWaits || its.ends <= sim_.Now()) return Look(completion);
    return {its.follows <= sim_.Now(), absl::OkStatus()};
  }
  void Park(absl::Time until) override {
    if (!WaitHook::MayBlock()) return;
    const Inside inside(*this);
    WaitHook::Current()->WaitUntil([this] { return is_rung_; }, until);
    is_rung_ = false;
  }
  void Wake() override {
    PauseOnDevice();
    is_rung_ = true;
  }
  void Abort(const absl::Status& reason) override {
    PauseOnDevice();
    if (!reason_.ok()) return;
    reason_ = reason;
    for (OnStream& each : operations) {
      if (each.ends <= sim_.Now()) continue;
      // What has ended at once is so at the very next look.
      each.ends = sim_.Now() + (sim_.Uniform(2) == 0 ? absl::ZeroDuration() : UpTo(kAbortTakes));
      each.follows = std::min(each.follows, each.ends);
      each.status = reason;
    }
    device_.pipelines = device_.caller = sim_.Now() + kAbortTakes;
    is_rung_ = true;
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
    is_rung_ = true;
  }

  absl::Time last_follows() const {
    absl::Time last = absl::InfinitePast();
    for (const OnStream& each : operations) last = std::max(last, each.follows);
    return last;
  }
  absl::Time last_end() const {
    absl::Time last = absl::InfinitePast();
    for (const OnStream& each : operations) last = std::max(last, each.ends);
    return last;
  }
  bool is_idle() const { return last_end() <= sim_.Now(); }
  // Whether an operation that ends well is at the bucket after `time`.
  bool IsAt(BucketId bucket, absl::Time time) const {
    return std::any_of(operations.begin(), operations.end(), [&](const OnStream& each) {
      return each.bucket == bucket && each.ends > time && each.status.ok();
    });
  }
  bool is_aborted() const { return !reason_.ok(); }
  // How late the end of an operation was first asked for, at worst.
  absl::Duration worst_look() const { return worst_look_; }

  std::vector<OnStream> operations;  // in the order of their launches

 private:
  // One thread's call. Threads: the one that made it. Owns: its being the only one.
  struct Inside {
    explicit Inside(SimDeviceRunner& runner) : runner(runner) {
      EXPECT_FALSE(std::exchange(runner.is_used_, true)) << "two threads drive";
      PauseOnDevice();
    }
    ~Inside() { runner.is_used_ = false; }
    SimDeviceRunner& runner;
  };

  State Look(Completion completion) {
    OnStream& its = operations[completion.ticket - 1];
    if (its.ends <= sim_.Now()) {
      if (!std::exchange(its.is_seen, true)) {
        worst_look_ = std::max(worst_look_, sim_.Now() - its.ends);
      }
      return {true, its.status};
    }
    // As a channel that keeps no list of what is on the device sees it.
    return {mistake_ == DeviceMistake::kForgets, absl::OkStatus()};
  }
  absl::Duration UpTo(absl::Duration most) {
    const auto nanos = static_cast<uint64_t>(absl::ToInt64Nanoseconds(most));
    return absl::Nanoseconds(static_cast<int64_t>(1 + sim_.Uniform(nanos)));
  }

  SimExecutor& sim_;
  SimDevice& device_;
  const DeviceMistake mistake_;
  absl::Status reason_;
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Duration worst_look_;
  bool has_news_ = false;
  bool is_rung_ = false;
  bool is_used_ = false;
};

// One tensor a bucket.
inline Plan DevicePlan(int32_t buckets) {
  std::vector<TensorSpec> tensors;
  for (int32_t i = 0; i < buckets; ++i) {
    tensors.push_back(
        {.name = absl::StrCat("t", i), .count = 100, .device = Device{DeviceKind::kCuda, 0}});
  }
  PlanOptions options;
  options.bucket_size_bytes = 400;
  return *Plan::Build(std::move(tensors), options);
}

// Options of rounds with one allreduce a bucket.
inline ModelRoundsOptions DeviceRoundsOptions(SimDevice& device, SimDeviceRunner& runner) {
  ModelRoundsOptions options;
  options.runner = &runner;
  options.device = &device;
  options.pipeline_factory = [](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
    return Pipeline::Build(std::move(spec), layout);
  };
  return options;
}

// Of that plan, in the order of their numbers.
inline std::vector<SlotId> AllSlots(int32_t count) {
  std::vector<SlotId> slots;
  for (int32_t i = 0; i < count; ++i) slots.emplace_back(i);
  return slots;
}
// Takes one of them, which the seed chooses.
inline SlotId TakeAny(SimExecutor& sim, std::vector<SlotId>& slots) {
  const auto place = slots.begin() + static_cast<ptrdiff_t>(sim.Uniform(slots.size()));
  const SlotId slot = *place;
  slots.erase(place);
  return slot;
}

// Checks that each mistake is found, within some seeds, by `wrong_in`: what goes wrong in rounds
// that end well on the device, "" if nothing does.
inline void ExpectMistakesAreFound(
    absl::FunctionRef<std::string(uint64_t seed, DeviceMistake mistake)> wrong_in) {
  constexpr uint64_t kSeeds = 100;
  const auto found = [&wrong_in](DeviceMistake mistake) {
    std::string wrong;
    for (uint64_t seed = 1; seed <= kSeeds && wrong.empty(); ++seed)
      wrong = wrong_in(seed, mistake);
    return wrong;
  };
  EXPECT_EQ(found(DeviceMistake::kAwaitsNoMark), "an operation comes before its tensors");
  EXPECT_EQ(found(DeviceMistake::kJoinsNoPipeline),
            "a bucket is written while an operation is at it");
  EXPECT_EQ(found(DeviceMistake::kHostWaits), "the host waits for the device");
  EXPECT_EQ(found(DeviceMistake::kForgets), "the plan changes while the device is at the old one");
}

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_SIM_DEVICE_H_
