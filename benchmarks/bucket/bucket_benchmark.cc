// What the bucketed runtime costs beside the copies and the communication:
//   MarkReady         one tensor, from one thread and from two at once; to reach: 200 ns
//   ready to start    from the mark of a bucket's last tensor to the start of its pipeline on the
//                     channel's parked thread: CPU time of both threads, the kernel's included; to
//                     reach: 5 us. And wall time; beside it what the wake-up alone costs. Then the
//                     same for a marker that waits at once.
//   waited round      of one bucket that is waited for at once, with an operation of 30 us: how
//   long
//                     it takes, and how often a thread of the process sleeps in it
//   round             everything, of 1000 tensors in 20 buckets on one rank, without communication
// Prints medians of several repetitions, and the least; the reading of the clock is taken off.
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/actor/waker.h"
#include "core/base/check.h"
#include "core/pipeline/standard_stages.h"
#include "core/plan/ready_tracker.h"
#include "core/round/model_rounds.h"

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

// When and where something started.
struct StartStamp {
  std::atomic<bool> happened{false};
  int64_t wall_nanos;
  int64_t process_nanos;
  int64_t thread_nanos;
  pthread_t thread;
  pid_t thread_id;

  void Take() {
    wall_nanos = NanosOf(CLOCK_MONOTONIC);
    thread_nanos = NanosOf(CLOCK_THREAD_CPUTIME_ID);
    process_nanos = NanosOf(CLOCK_PROCESS_CPUTIME_ID);
    thread = pthread_self();
    thread_id = gettid();
    happened.store(true, std::memory_order_release);
  }
};

// Notes when it starts.
// Threads: as Stage. Owns: nothing.
class StampStage final : public Stage {
 public:
  explicit StampStage(StartStamp* start) : start_(*start) {}
  absl::string_view name() const override { return "stamp"; }
  absl::Status Start(BucketRun&, StageState*) override {
    start_.Take();
    return absl::OkStatus();
  }

 private:
  StartStamp& start_;
};

std::unique_ptr<ModelRounds> MakeRounds(Plan plan, OperationRunner& runner, StartStamp* start) {
  ModelRoundsOptions options;
  options.runner = &runner;
  options.pipeline_factory = [start](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<StampStage>(start));
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

void FinishRound(ModelRounds& rounds) {
  PELTON_CHECK_OK(rounds.WaitRound(absl::Now() + absl::Seconds(10)));
}

// Whether the thread sleeps: state S in /proc, behind the name in brackets.
bool Sleeps(pid_t thread) {
  std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t state = line.rfind(')') + 2;
  return state < line.size() && line[state] == 'S';
}

// The CPU time of the channel's thread once it has parked.
int64_t NanosWhenParked(const StartStamp& start) {
  clockid_t clock;
  PELTON_CHECK(pthread_getcpuclockid(start.thread, &clock) == 0);
  do {
    absl::SleepFor(absl::Microseconds(100));  // ALLOW: the thread shall find nothing to do
  } while (!Sleeps(start.thread_id));
  return NanosOf(clock);
}

// CPU and wall time from `begin` on this thread to the start that it brings about on a parked one.
template <typename Begin, typename Finish>
void MeasureHandOver(const std::string& what, StartStamp& start, Begin begin, Finish finish) {
  const double reading = ReadingNanos(CLOCK_THREAD_CPUTIME_ID);
  std::vector<double> here, there, both, wall;
  while (both.size() < 10 * kRepetitions) {
    const bool is_known = start.happened.exchange(false);
    const int64_t parked = is_known ? NanosWhenParked(start) : 0;
    const int64_t wall_begin = NanosOf(CLOCK_MONOTONIC);
    const int64_t cpu_begin = NanosOf(CLOCK_THREAD_CPUTIME_ID);
    begin();
    const int64_t cpu_end = NanosOf(CLOCK_THREAD_CPUTIME_ID);
    while (!start.happened.load(std::memory_order_acquire)) {
    }
    finish();
    if (!is_known) continue;
    here.push_back(static_cast<double>(cpu_end - cpu_begin) - reading);
    there.push_back(static_cast<double>(start.thread_nanos - parked) - reading);
    both.push_back(here.back() + there.back());
    wall.push_back(static_cast<double>(start.wall_nanos - wall_begin));
  }
  Report(what + ", CPU time", both);
  Report("  of it the waking thread's", here);
  Report("  of it the woken thread's", there);
  Report(what + ", wall time", wall);
}

// What waking a parked thread costs by itself: no hand-over to one can cost less.
void MeasureBareWake() {
  Waker waker;
  StartStamp start;
  std::atomic<bool> ends{false};
  std::thread woken([&] {
    while (!ends.load()) {
      if (waker.Park(absl::Seconds(10))) start.Take();
    }
  });
  MeasureHandOver(
      "a parked thread's wake-up alone", start, [&] { waker.Kick(); }, [] {});
  ends.store(true);
  waker.Kick();
  woken.join();
}

// The marker goes on with its backward pass, and the channel's thread has to be woken.
void MeasureReadyToStart() {
  InstantRunner runner;
  StartStamp start;
  const auto rounds = MakeRounds(MakePlan(1, 1), runner, &start);
  MeasureHandOver(
      "last ready to pipeline start", start, [&] { PELTON_CHECK_OK(rounds->MarkReady(SlotId(0))); },
      [&] { FinishRound(*rounds); });
}

// The marker waits for the round at once; process CPU time counts its way into that wait, too.
void MeasureWaiterReadyToStart() {
  InstantRunner runner;
  StartStamp start;
  const auto rounds = MakeRounds(MakePlan(1, 1), runner, &start);
  const double reading = ReadingNanos(CLOCK_PROCESS_CPUTIME_ID);
  std::vector<double> cpu, wall;
  for (int repetition = 0; repetition < 20 * kRepetitions; ++repetition) {
    const int64_t wall_begin = NanosOf(CLOCK_MONOTONIC);
    const int64_t begin = NanosOf(CLOCK_PROCESS_CPUTIME_ID);
    PELTON_CHECK_OK(rounds->MarkReady(SlotId(0)));
    FinishRound(*rounds);
    cpu.push_back(static_cast<double>(start.process_nanos - begin) - reading);
    wall.push_back(static_cast<double>(start.wall_nanos - wall_begin));
  }
  Report("the same, marker waits at once, CPU time", cpu);
  Report("the same, marker waits at once, wall time", wall);
}

// Ends each operation some time after its launch. One at a time.
// Threads: as OperationRunner. Owns: the waker.
class TimedRunner final : public OperationRunner {
 public:
  explicit TimedRunner(int64_t takes_nanos) : takes_nanos_(takes_nanos) {}
  absl::StatusOr<Completion> Launch(const Operation&, Stream&) override {
    ends_nanos_ = NanosOf(CLOCK_MONOTONIC) + takes_nanos_;
    return Completion{++launches_};
  }
  bool Progress() override {
    if (ended_ == launches_ || NanosOf(CLOCK_MONOTONIC) < ends_nanos_) return false;
    ended_ = launches_;
    return true;
  }
  State Query(Completion completion) override {
    return {completion.ticket <= ended_, absl::OkStatus()};
  }
  void Park(absl::Time) override {
    const int64_t left = ends_nanos_ - NanosOf(CLOCK_MONOTONIC);
    if (left > 0) waker_.Park(absl::Nanoseconds(left));
  }
  void Wake() override { waker_.Kick(); }
  void Abort(const absl::Status&) override {}
  std::vector<Rank> Missing() const override { return {}; }

 private:
  const int64_t takes_nanos_;
  int64_t ends_nanos_ = 0;
  uint64_t launches_ = 0;
  uint64_t ended_ = 0;
  Waker waker_;
};

int64_t SleepsOfProcess() {
  rusage usage;
  PELTON_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_nvcsw;
}

void MeasureWaitedRound() {
  constexpr int kRounds = 40 * kRepetitions;
  TimedRunner runner(/*takes_nanos=*/30'000);
  ModelRoundsOptions options;
  options.runner = &runner;
  options.pipeline_factory = [](const BucketLayout& layout) {
    PipelineSpec spec;
    spec.stages.push_back(MakeAllReduceStage(ReduceOp::kSum));
    return Pipeline::Build(std::move(spec), layout);
  };
  const auto rounds = *ModelRounds::Create(MakePlan(1, 1), std::move(options));
  std::vector<double> wall;
  const int64_t sleeps = SleepsOfProcess();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = NanosOf(CLOCK_MONOTONIC);
    PELTON_CHECK_OK(rounds->MarkReady(SlotId(0)));
    FinishRound(*rounds);
    const int64_t end = NanosOf(CLOCK_MONOTONIC);
    wall.push_back(static_cast<double>(end - begin));
    while (NanosOf(CLOCK_MONOTONIC) < end + 20'000) {  // the trainer computes
    }
  }
  Report("waited round with an operation of 30 us, wall time", wall);
  std::printf("%-58s        %9.2f\n", "  sleeps of a thread in each",
              static_cast<double>(SleepsOfProcess() - sleeps) / kRounds);
}

void MeasureRound() {
  constexpr int kTensors = 1000;
  InstantRunner runner;
  StartStamp start;
  const auto rounds = MakeRounds(MakePlan(kTensors, 20), runner, &start);
  std::vector<double> nanos;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const int64_t begin = NanosOf(CLOCK_PROCESS_CPUTIME_ID);
    for (int32_t slot = kTensors; slot-- > 0;) PELTON_CHECK_OK(rounds->MarkReady(SlotId(slot)));
    PELTON_CHECK_OK(rounds->EndRound());
    FinishRound(*rounds);
    nanos.push_back(static_cast<double>(NanosOf(CLOCK_PROCESS_CPUTIME_ID) - begin) / kTensors);
  }
  Report("round of 1000 tensors in 20 buckets, CPU time per tensor", nanos);
}

}  // namespace
}  // namespace pelton

int main() {
  pelton::MeasureMarkReady(1);
  pelton::MeasureMarkReady(2);
  pelton::MeasureBareWake();
  pelton::MeasureReadyToStart();
  pelton::MeasureWaiterReadyToStart();
  pelton::MeasureWaitedRound();
  pelton::MeasureRound();
  return 0;
}
