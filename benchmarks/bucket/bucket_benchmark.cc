// What the bucketed runtime costs beside the copies and the communication:
//   MarkReady         one tensor, from one thread and from two at once; to reach: 200 ns
//   ready to start    from the mark of a bucket's last tensor to the start of its pipeline: CPU
//   time
//                     on one thread (the waiter drives); to reach: 5 us. And wall time across
//                     threads.
//   round             everything, of 1000 tensors in 20 buckets on one rank, without communication
// Prints medians of several repetitions, and the least; the reading of the clock is taken off.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/bucket/model_rounds.h"
#include "core/bucket/ready_tracker.h"

namespace pelton {
namespace {

constexpr int kRepetitions = 51;

int64_t NanosOf(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * int64_t{1000000000} + time.tv_nsec;
}

void Report(const std::string& what, std::vector<double> nanos) {
  std::sort(nanos.begin(), nanos.end());
  std::printf("%-58s median %9.1f ns, least %9.1f ns\n", what.c_str(), nanos[nanos.size() / 2],
              nanos.front());
}

Plan MakePlan(int tensors, int buckets) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < tensors; ++i) {
    specs.push_back({absl::StrCat("t", i), DType::kFloat32, 16, {}});
  }
  PlanOptions options;
  options.bucket_size_bytes = static_cast<uint64_t>(tensors / buckets) * 64;
  return *Plan::Build(std::move(specs), options);
}

// Threads: any. Owns: nothing.
class NullSink final : public ReadySink {
 public:
  void OnBucketReady(BucketId, Round) override {}
};

void MeasureMarkReady(int thread_count) {
  constexpr int kTensors = 1000;
  const Plan plan = MakePlan(kTensors, 20);
  const std::unique_ptr<BucketStorage> storage = *BucketStorage::Create(plan, "benchmark");
  NullSink sink;
  ReadyTracker tracker(plan, *storage, sink, Round(1));
  std::vector<double> nanos;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    std::vector<int64_t> spent(static_cast<size_t>(thread_count));
    std::vector<std::thread> threads;
    std::atomic<int> waiting{thread_count};
    for (int thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        waiting.fetch_sub(1);
        while (waiting.load() > 0) {
        }
        const int64_t begin = NanosOf(CLOCK_THREAD_CPUTIME_ID);
        for (int32_t slot = thread; slot < kTensors; slot += thread_count) {
          PELTON_CHECK_OK(tracker.MarkReady(SlotId(slot)));
        }
        spent[static_cast<size_t>(thread)] = NanosOf(CLOCK_THREAD_CPUTIME_ID) - begin;
      });
    }
    for (std::thread& thread : threads) thread.join();
    tracker.OpenRound();
    double total = 0;
    for (int64_t each : spent) total += static_cast<double>(each);
    nanos.push_back(total / kTensors);
  }
  Report(absl::StrCat("MarkReady, CPU time per call, ", thread_count, " thread(s)"), nanos);
}

// Does nothing at once: a world of one rank with wires of no length.
// Threads: as OperationRunner. Owns: a count.
class InstantRunner final : public OperationRunner {
 public:
  absl::StatusOr<Completion> Launch(const Operation&, Stream&) override {
    return Completion{++launches_};
  }
  bool Progress() override { return false; }
  State Query(Completion) override { return {true, absl::OkStatus()}; }
  void Park(absl::Time) override {}
  void Wake() override {}
  void Abort(const absl::Status&) override {}
  std::vector<Rank> Missing() const override { return {}; }

 private:
  uint64_t launches_ = 0;
};

// Notes when it starts.
// Threads: as Stage. Owns: nothing.
class StampStage final : public Stage {
 public:
  StampStage(clockid_t clock, std::atomic<int64_t>* started) : clock_(clock), started_(*started) {}
  absl::string_view name() const override { return "stamp"; }
  StageKind kind() const override { return StageKind::kPrepare; }
  absl::Status Start(BucketRun&, StageState*) override {
    started_.store(NanosOf(clock_), std::memory_order_release);
    return absl::OkStatus();
  }

 private:
  const clockid_t clock_;
  std::atomic<int64_t>& started_;
};

std::unique_ptr<ModelRounds> MakeRounds(Plan plan, OperationRunner& runner, clockid_t clock,
                                        std::atomic<int64_t>* started) {
  ModelRoundsOptions options;
  options.runner = &runner;
  options.pipeline_factory = [clock, started](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<StampStage>(clock, started));
    return Pipeline::Build(std::move(spec), layout);
  };
  auto rounds = ModelRounds::Create(std::move(plan), std::move(options));
  PELTON_CHECK(rounds.ok()) << rounds.status();
  return *std::move(rounds);
}

// What two readings of `clock` cost when nothing happens between them.
double ReadingNanos(clockid_t clock) {
  std::vector<int64_t> nanos;
  for (int i = 0; i < 1001; ++i) {
    const int64_t begin = NanosOf(clock);
    nanos.push_back(NanosOf(clock) - begin);
  }
  std::sort(nanos.begin(), nanos.end());
  return static_cast<double>(nanos[nanos.size() / 2]);
}

// Process CPU time counts the marking thread, the scheduler's and every wake-up between them.
void MeasureReadyToStart(clockid_t clock, const std::string& what) {
  InstantRunner runner;
  std::atomic<int64_t> started{0};
  const auto rounds = MakeRounds(MakePlan(1, 1), runner, clock, &started);
  const double reading = ReadingNanos(clock);
  std::vector<double> nanos;
  for (int repetition = 0; repetition < 20 * kRepetitions; ++repetition) {
    started.store(0);
    const int64_t begin = NanosOf(clock);
    PELTON_CHECK_OK(rounds->MarkReady(SlotId(0)));
    PELTON_CHECK_OK(rounds->WaitRound(absl::Now() + absl::Seconds(10)));
    nanos.push_back(static_cast<double>(started.load() - begin) - reading);
  }
  Report(what, nanos);
}

void MeasureRound() {
  constexpr int kTensors = 1000;
  InstantRunner runner;
  std::atomic<int64_t> started{0};
  const auto rounds = MakeRounds(MakePlan(kTensors, 20), runner, CLOCK_MONOTONIC, &started);
  std::vector<double> nanos;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const int64_t begin = NanosOf(CLOCK_PROCESS_CPUTIME_ID);
    for (int32_t slot = kTensors; slot-- > 0;) PELTON_CHECK_OK(rounds->MarkReady(SlotId(slot)));
    PELTON_CHECK_OK(rounds->EndRound());
    PELTON_CHECK_OK(rounds->WaitRound(absl::Now() + absl::Seconds(10)));
    nanos.push_back(static_cast<double>(NanosOf(CLOCK_PROCESS_CPUTIME_ID) - begin) / kTensors);
  }
  Report("round of 1000 tensors in 20 buckets, CPU time per tensor", nanos);
}

}  // namespace
}  // namespace pelton

int main() {
  pelton::MeasureMarkReady(1);
  pelton::MeasureMarkReady(2);
  pelton::MeasureReadyToStart(CLOCK_PROCESS_CPUTIME_ID, "last ready to pipeline start, CPU time");
  pelton::MeasureReadyToStart(CLOCK_MONOTONIC, "last ready to pipeline start, wall time");
  pelton::MeasureRound();
  return 0;
}
