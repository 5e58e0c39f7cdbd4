#include "comm/transport/nccl/gpu_ipc/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/transport/nccl/gpu_ipc/handles.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::gpu_ipc {
namespace {

constexpr Way kWays[] = {Way::kCompute, Way::kWork, Way::kHere, Way::kThere};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Threads: one. Owns: its daemon.
class Trainer {
 public:
  Trainer(Device& device, const Experiment& experiment, int rank, Peer& launcher,
          absl::Time deadline)
      : device_(device),
        experiment_(experiment),
        rank_(rank),
        launcher_(launcher),
        deadline_(deadline) {}

  absl::Status Prepare() {
    const auto scratch_count = static_cast<uint64_t>(experiment_.kernel_bytes) / sizeof(float);
    ASSIGN_OR_RETURN(compute_, device_.NewStream());
    ASSIGN_OR_RETURN(work_, device_.NewStream());
    ASSIGN_OR_RETURN(end_, device_.NewEvent(/*is_shared=*/false));
    ASSIGN_OR_RETURN(ones_, device_.NewFloats(experiment_.count(), static_cast<float>(rank_ + 1)));
    ASSIGN_OR_RETURN(source_, device_.NewFloats(experiment_.count(), 0));
    ASSIGN_OR_RETURN(scratch_, device_.NewFloats(scratch_count, 1));
    ASSIGN_OR_RETURN(meeting_, device_.NewFloats(1, 0));
    ASSIGN_OR_RETURN(half_, device_.NewFactors({0.5}));
    for (int b = 0; b < experiment_.buckets; ++b) {
      ASSIGN_OR_RETURN(factors_.emplace_back(), device_.NewFactors({1, static_cast<double>(b)}));
    }
    ASSIGN_OR_RETURN(add_, device_.NewFactors({1, 1}));
    ASSIGN_OR_RETURN(buckets_, MakeBuckets(device_, experiment_));
    RETURN_IF_ERROR(device_.Connect(experiment_.trainers_id, rank_, experiment_.ranks, deadline_));
    return Step(Way::kHere).status();  // now this process has all that it needs on the device
  }

  absl::Status StartDaemon(Figures& figures) {
    std::vector<std::string> flags = {"--daemon", "1", "--rank", absl::StrCat(rank_)};
    const std::vector<std::string> shared = experiment_.ToFlags();
    flags.insert(flags.end(), shared.begin(), shared.end());
    ASSIGN_OR_RETURN(const uint64_t before, AgreedFreeBytes());
    ASSIGN_OR_RETURN(Peer daemon, Peer::Start(absl::StrCat("rank ", rank_, "'s daemon"), flags));
    daemon_.emplace(std::move(daemon));
    RETURN_IF_ERROR(daemon_->Expect(Word::kHasContext, deadline_).status());
    ASSIGN_OR_RETURN(const uint64_t with_context, AgreedFreeBytes());
    ASSIGN_OR_RETURN(const std::string handles, Export(device_, buckets_));
    RETURN_IF_ERROR(daemon_->Tell(Word::kHandles, 0, handles));
    RETURN_IF_ERROR(daemon_->Expect(Word::kIsReady, deadline_).status());
    ASSIGN_OR_RETURN(const uint64_t with_nccl, AgreedFreeBytes());
    // All ranks' daemons are on this GPU, and each has come as far.
    figures.context_bytes = static_cast<int64_t>(before - with_context) / experiment_.ranks;
    figures.nccl_bytes = static_cast<int64_t>(with_context - with_nccl) / experiment_.ranks;
    return absl::OkStatus();
  }

  pid_t daemon_pid() const { return daemon_->pid(); }

  absl::Status Measure(Figures& figures) {
    for (int turn = 0; turn < experiment_.turns; ++turn) {
      for (const Way way : kWays) {
        RETURN_IF_ERROR(Meet());
        ASSIGN_OR_RETURN(const double milliseconds, Turn(way, figures));
        figures.milliseconds[static_cast<size_t>(way)].push_back(milliseconds);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EndDaemon() {
    RETURN_IF_ERROR(daemon_->Tell(Word::kEnd));
    return daemon_->Join(deadline_);
  }

 private:
  // The median of a turn's steps. The first warms up.
  absl::StatusOr<double> Turn(Way way, Figures& figures) {
    std::vector<double> milliseconds;
    for (int i = -1; i < experiment_.steps; ++i) {
      ASSIGN_OR_RETURN(const double took, Step(way));
      if (i >= 0) milliseconds.push_back(took);
      if (way != Way::kHere && way != Way::kThere) continue;
      RETURN_IF_ERROR(Verify(way));
      ++figures.verified_steps;
    }
    return Median(std::move(milliseconds));
  }

  // Until the device is through it. Units: milliseconds.
  absl::StatusOr<double> Step(Way way) {
    const absl::Time begin = Clock::Real().Now();
    if (way == Way::kWork) {
      for (size_t b = 0; b < buckets_.ready.size(); ++b) {
        RETURN_IF_ERROR(device_.Work(Bucket(b), experiment_, work_, deadline_));
      }
      RETURN_IF_ERROR(AwaitStream(work_));
    } else {
      RETURN_IF_ERROR(Backward(way));
      if (way != Way::kCompute) RETURN_IF_ERROR(FollowWork(way));
      RETURN_IF_ERROR(AwaitStream(compute_));
    }
    return absl::ToDoubleMilliseconds(Clock::Real().Now() - begin);
  }

  // Every bucket gets rank + 1 times the sum of the step's number and its own.
  absl::Status Backward(Way way) {
    const auto scratch_count = static_cast<uint64_t>(experiment_.kernel_bytes) / sizeof(float);
    ++step_;
    RETURN_IF_ERROR(device_.Combine(source_, ones_, add_, source_, experiment_.count(), compute_));
    for (size_t b = 0; b < buckets_.ready.size(); ++b) {
      for (int i = 0; i < experiment_.kernels; ++i) {
        RETURN_IF_ERROR(
            device_.Combine(scratch_, nullptr, half_, scratch_, scratch_count, compute_));
      }
      RETURN_IF_ERROR(
          device_.Combine(source_, ones_, factors_[b], Bucket(b), experiment_.count(), compute_));
      if (way != Way::kCompute) RETURN_IF_ERROR(HandOver(way, b));
    }
    return absl::OkStatus();
  }

  absl::Status HandOver(Way way, size_t b) {
    RETURN_IF_ERROR(Record(buckets_.ready[b], compute_));
    if (way == Way::kThere) return daemon_->Tell(Word::kLaunch, static_cast<int>(b));
    RETURN_IF_ERROR(WaitOn(work_, buckets_.ready[b]));
    RETURN_IF_ERROR(device_.Work(Bucket(b), experiment_, work_, deadline_));
    return Record(buckets_.done[b], work_);
  }

  // What comes next on the stream, as an optimizer's step, comes after the work.
  absl::Status FollowWork(Way way) {
    for (size_t b = 0; b < buckets_.done.size(); ++b) {
      // A stream waits for what an event was last recorded behind, so the daemon must have done so.
      if (way == Way::kThere) {
        RETURN_IF_ERROR(daemon_->Expect(Word::kLaunched, deadline_).status());
      }
      RETURN_IF_ERROR(WaitOn(compute_, buckets_.done[b]));
    }
    return absl::OkStatus();
  }

  absl::Status Verify(Way way) {
    std::vector<float> values(experiment_.count());
    const int shares = experiment_.ranks * (experiment_.ranks + 1) / 2;  // of all ranks
    for (size_t b = 0; b < buckets_.ready.size(); ++b) {
      RETURN_IF_ERROR(device_.ToStatus(
          device_.calls().memcpy_async(values.data(), Bucket(b), values.size() * sizeof(float),
                                       cuda::kMemcpyDefault, compute_),
          "cudaMemcpyAsync"));
      RETURN_IF_ERROR(AwaitStream(compute_));
      const auto sum = static_cast<double>(shares * (step_ + static_cast<int>(b)));
      const auto expected = static_cast<float>(std::ldexp(sum, -experiment_.passes));
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == expected) continue;
        return absl::DataLossError(absl::StrCat(
            "step ", step_, ", launched ", way == Way::kHere ? "in process" : "from the daemon",
            ": element ", i, " of bucket ", b, " is ", values[i], ", not ", expected));
      }
    }
    return absl::OkStatus();
  }

  // All ranks' trainers have come here.
  absl::Status Meet() {
    Experiment small = experiment_;
    small.bucket_bytes = sizeof(float);
    RETURN_IF_ERROR(device_.Work(meeting_, small, work_, deadline_));
    return AwaitStream(work_);
  }

  // While no rank changes anything.
  absl::StatusOr<uint64_t> AgreedFreeBytes() {
    RETURN_IF_ERROR(Meet());
    ASSIGN_OR_RETURN(const uint64_t free_bytes, device_.FreeBytes());
    RETURN_IF_ERROR(Meet());
    return free_bytes;
  }

  absl::Status AwaitStream(cuda::StreamHandle stream) {
    RETURN_IF_ERROR(Record(end_, stream));
    return device_.Await(end_, absl::StrCat("step ", step_), deadline_, [&] {
      RETURN_IF_ERROR(launcher_.Check());
      return daemon_.has_value() ? daemon_->Check() : absl::OkStatus();
    });
  }

  absl::Status Record(cuda::EventHandle event, cuda::StreamHandle stream) {
    return device_.ToStatus(device_.calls().event_record(event, stream), "cudaEventRecord");
  }
  absl::Status WaitOn(cuda::StreamHandle stream, cuda::EventHandle event) {
    return device_.ToStatus(device_.calls().stream_wait_event(stream, event, 0),
                            "cudaStreamWaitEvent");
  }
  float* Bucket(size_t b) { return buckets_.memory + b * experiment_.count(); }

  Device& device_;
  const Experiment& experiment_;
  const int rank_;
  Peer& launcher_;
  const absl::Time deadline_;
  std::optional<Peer> daemon_;
  cuda::StreamHandle compute_ = nullptr;
  cuda::StreamHandle work_ = nullptr;
  cuda::EventHandle end_ = nullptr;
  float* ones_ = nullptr;     // all rank + 1, which every step adds to source_
  float* source_ = nullptr;   // all rank + 1 times step_
  float* scratch_ = nullptr;  // for the kernels that stand for the backward pass
  float* meeting_ = nullptr;  // one
  const double* half_ = nullptr;
  const double* add_ = nullptr;
  std::vector<const double*> factors_;  // by bucket
  SharedBuckets buckets_;
  int step_ = 0;
};

}  // namespace

absl::StatusOr<Figures> RunTrainer(Device& device, const Experiment& experiment, int rank,
                                   Peer& launcher, absl::Time deadline, std::ostream& out) {
  Figures figures;
  Trainer trainer(device, experiment, rank, launcher, deadline);
  RETURN_IF_ERROR(trainer.Prepare());
  RETURN_IF_ERROR(trainer.StartDaemon(figures));
  out << "rank " << rank << ": trainer " << getpid() << ", daemon " << trainer.daemon_pid()
      << std::endl;
  RETURN_IF_ERROR(trainer.Measure(figures));
  RETURN_IF_ERROR(trainer.EndDaemon());
  return figures;
}

void Print(const Experiment& experiment, const Figures& figures, std::ostream& out) {
  constexpr absl::string_view kNames[] = {"kernels alone", "buckets' work alone",
                                          "both, launched in process",
                                          "both, launched from the daemon"};
  constexpr double kMebibyte = 1 << 20;
  std::array<double, kWayCount> medians{};
  for (size_t way = 0; way < kWayCount; ++way) medians[way] = Median(figures.milliseconds[way]);
  out << absl::StreamFormat(
      "a step of %d rank(s): %d buckets of %.3f MiB, %d kernels over %.3f MiB before each\n",
      experiment.ranks, experiment.buckets, experiment.bucket_bytes / kMebibyte, experiment.kernels,
      experiment.kernel_bytes / kMebibyte);
  out << absl::StreamFormat("%-32s %10s %10s %10s %10s\n", "", "median ms", "least", "most",
                            "hidden %");
  for (const Way way : kWays) {
    const auto i = static_cast<size_t>(way);
    const auto [least, most] =
        std::minmax_element(figures.milliseconds[i].begin(), figures.milliseconds[i].end());
    out << absl::StreamFormat("%-32s %10.3f %10.3f %10.3f", kNames[i], medians[i], *least, *most);
    // All of the shorter one: both take as long as the longer one. Nothing: as long as their sum.
    const double saved = medians[0] + medians[1] - medians[i];
    if (way == Way::kHere || way == Way::kThere) {
      out << absl::StreamFormat(" %10.0f", 100 * saved / std::min(medians[0], medians[1]));
    }
    out << '\n';
  }
  out << absl::StreamFormat("device memory of a daemon: %.1f MiB context, %.1f MiB NCCL\n",
                            static_cast<double>(figures.context_bytes) / kMebibyte,
                            static_cast<double>(figures.nccl_bytes) / kMebibyte);
  out << figures.verified_steps << " steps: every value is right\n";
}

}  // namespace pelton::gpu_ipc
