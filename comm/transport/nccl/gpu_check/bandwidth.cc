#include "comm/transport/nccl/gpu_check/bandwidth.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/neighbors.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/native_communicator.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/pipeline/weight_table.h"

namespace pelton {
namespace {

constexpr uint64_t kSmallestBytes = 4 << 10;
constexpr uint64_t kLargeBytes = uint64_t{32} << 20;
constexpr double kWantedShare = 0.98;
constexpr double kWantedMicroseconds = 10;

absl::Time FarDeadline() { return Clock::Real().Now() + absl::Minutes(2); }

// One rank's ways to do the same: NCCL's and ours. Threads: one. Owns: its stream and memory.
class Rig {
 public:
  Rig(Exchange exchange, const nccl::NcclLibrary& library, const cuda::CudaRuntime& runtime,
      Communicator& ours)
      : exchange_(exchange),
        runtime_(runtime),
        ours_(ours),
        raw_(library, runtime, 0, "raw NCCL") {}
  ~Rig() {
    if (stream_ != nullptr) runtime_.calls().stream_destroy(stream_);
    for (void* const memory : {memory_, received_}) {
      if (memory != nullptr) runtime_.calls().release(memory);
    }
  }

  absl::Status Prepare(const nccl::UniqueId& id, uint64_t size_bytes) {
    const cuda::DeviceScope scope(runtime_, 0);
    RETURN_IF_ERROR(
        runtime_.ToStatus(runtime_.calls().allocate(&memory_, size_bytes), "cudaMalloc"));
    if (exchange_ == Exchange::kNeighbors) {
      RETURN_IF_ERROR(
          runtime_.ToStatus(runtime_.calls().allocate(&received_, size_bytes), "cudaMalloc"));
      ASSIGN_OR_RETURN(table_, WeightTable::Create({.own = 0.5,
                                                    .sources = {{Rank(other()), 0.5}},
                                                    .destinations = {{Rank(other()), 1}}}));
    }
    RETURN_IF_ERROR(runtime_.ToStatus(
        runtime_.calls().stream_create_with_flags(&stream_, cuda::kStreamNonBlocking),
        "cudaStreamCreateWithFlags"));
    RETURN_IF_ERROR(raw_.Begin(id, ours_.rank().value(), ours_.world_size().value()));
    return WaitForRaw();
  }

  absl::Status RunRaw(uint64_t size_bytes, int operations) {
    for (int i = 0; i < operations; ++i) {
      const auto on_stream = raw_.Call(
          exchange_ == Exchange::kAllReduce ? "ncclAllReduce" : "ncclSend",
          [&](const nccl::NcclTable& calls, nccl::Handle comm) {
            return exchange_ == Exchange::kAllReduce ? AllReduceRaw(calls, comm, size_bytes / 4)
                                                     : SwapRaw(calls, comm, size_bytes / 4);
          });
      RETURN_IF_ERROR(on_stream.status());
      if (!*on_stream) RETURN_IF_ERROR(WaitForRaw());
    }
    return Synchronize();
  }

  absl::Status RunOurs(uint64_t size_bytes, int operations) {
    CudaStream stream(stream_, 0);
    Completion last;
    for (int i = 0; i < operations; ++i) {
      ASSIGN_OR_RETURN(last, LaunchOurs(size_bytes / 4, stream));
      RETURN_IF_ERROR(PutBehind(ours_, last, stream));
    }
    RETURN_IF_ERROR(Synchronize());
    return Await(ours_, last, FarDeadline());
  }

 private:
  int32_t other() const { return 1 - ours_.rank().value(); }

  int AllReduceRaw(const nccl::NcclTable& calls, nccl::Handle comm, uint64_t count) {
    return calls.all_reduce(memory_, memory_, count, nccl::Type::kFloat32, nccl::Op::kSum, comm,
                            stream_);
  }

  // The first failure counts; the group is closed all the same.
  int SwapRaw(const nccl::NcclTable& calls, nccl::Handle comm, uint64_t count) {
    const int results[] = {
        calls.group_start(),
        calls.send(memory_, count, nccl::Type::kFloat32, other(), comm, stream_),
        calls.recv(received_, count, nccl::Type::kFloat32, other(), comm, stream_),
        calls.group_end()};
    for (const int result : results) {
      if (result != 0) return result;
    }
    return 0;
  }

  absl::StatusOr<Completion> LaunchOurs(uint64_t count, CudaStream& stream) {
    const Tensor tensor{memory_, count, DType::kFloat32};
    if (exchange_ == Exchange::kNeighbors) {
      return NeighborAllReduce(ours_, tensor, tensor, *table_, {}, &stream);
    }
    Operation operation;
    operation.kind = OperationKind::kAllReduce;
    operation.count = count;
    operation.set_source({kPrivateRegion, reinterpret_cast<uintptr_t>(memory_)});
    operation.set_target(operation.source());
    return ours_.Launch(operation, stream);
  }

  absl::Status WaitForRaw() {
    while (true) {
      ASSIGN_OR_RETURN(const bool idle, raw_.Poll());
      if (idle) return absl::OkStatus();
    }
  }
  absl::Status Synchronize() {
    return runtime_.ToStatus(runtime_.calls().stream_synchronize(stream_), "cudaStreamSynchronize");
  }

  const Exchange exchange_;
  const cuda::CudaRuntime& runtime_;
  Communicator& ours_;
  nccl::NativeCommunicator raw_;
  std::shared_ptr<const WeightTable> table_;  // shared: an operation in flight keeps it
  void* memory_ = nullptr;
  void* received_ = nullptr;
  cuda::StreamHandle stream_ = nullptr;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Of one size. Units: microseconds per operation.
struct Row {
  uint64_t size_bytes = 0;
  double raw = 0;
  double ours = 0;
  double raw_alone = 0;  // an operation that none follows
  double ours_alone = 0;
};

absl::StatusOr<double> TimeOf(const std::function<absl::Status(int)>& run, int operations,
                              Communicator& ours) {
  ASSIGN_OR_RETURN(const Completion together, Barrier(ours));
  RETURN_IF_ERROR(Await(ours, together, FarDeadline()));
  const absl::Time begin = Clock::Real().Now();
  RETURN_IF_ERROR(run(operations));
  return absl::ToDoubleMicroseconds(Clock::Real().Now() - begin) / operations;
}

absl::StatusOr<Row> Measure(Rig& rig, uint64_t size_bytes, const BandwidthOptions& options,
                            Communicator& ours) {
  const std::function<absl::Status(int)> ways[] = {
      [&](int operations) { return rig.RunRaw(size_bytes, operations); },
      [&](int operations) { return rig.RunOurs(size_bytes, operations); }};
  std::vector<double> times[4];                        // raw, ours, and each alone
  for (int turn = -1; turn < options.turns; ++turn) {  // the first warms up
    for (size_t way = 0; way < 2; ++way) {
      ASSIGN_OR_RETURN(const double chained, TimeOf(ways[way], options.operations, ours));
      ASSIGN_OR_RETURN(const double alone, TimeOf(ways[way], 1, ours));
      if (turn < 0) continue;
      times[way].push_back(chained);
      times[way + 2].push_back(alone);
    }
  }
  return Row{size_bytes, Median(times[0]), Median(times[1]), Median(times[2]), Median(times[3])};
}

absl::StatusOr<std::vector<Row>> MeasureAll(const BandwidthOptions& options,
                                            const nccl::NcclLibrary& library,
                                            const cuda::CudaRuntime& runtime, Communicator& ours,
                                            const nccl::UniqueId& id) {
  Rig rig(options.exchange, library, runtime, ours);
  RETURN_IF_ERROR(rig.Prepare(id, options.largest_bytes));
  std::vector<Row> rows;
  for (uint64_t bytes = kSmallestBytes; bytes <= options.largest_bytes; bytes *= 4) {
    ASSIGN_OR_RETURN(rows.emplace_back(), Measure(rig, bytes, options, ours));
  }
  if (rows.empty() || rows.back().size_bytes != options.largest_bytes) {
    ASSIGN_OR_RETURN(rows.emplace_back(), Measure(rig, options.largest_bytes, options, ours));
  }
  return rows;
}

// Whether an aim is reached; sizes that were not asked for say nothing.
absl::string_view Verdict(bool is_measured, bool is_reached) {
  if (!is_measured) return "not measured";
  return is_reached ? "reached" : "missed";
}

void Print(Exchange exchange, const std::vector<Row>& rows, std::ostream& out) {
  const bool is_average = exchange == Exchange::kNeighbors;
  out << (is_average ? "averages of two neighbours, beside NCCL's send and receive:\n"
                     : "allreduces:\n");
  out << absl::StreamFormat("%12s %12s %12s %9s %14s %14s %9s\n", "bytes", "NCCL us", "ours us",
                            "share %", "NCCL alone us", "ours alone us", "added us");
  double share = 1;
  double added = 0;
  for (const Row& row : rows) {
    out << absl::StreamFormat("%12d %12.1f %12.1f %9.1f %14.1f %14.1f %9.1f\n", row.size_bytes,
                              row.raw, row.ours, 100 * row.raw / row.ours, row.raw_alone,
                              row.ours_alone, row.ours_alone - row.raw_alone);
    if (row.size_bytes >= kLargeBytes) share = std::min(share, row.raw / row.ours);
    if (row.size_bytes < kLargeBytes) added = std::max(added, row.ours_alone - row.raw_alone);
  }
  if (is_average) return;
  const bool has_large = rows.back().size_bytes >= kLargeBytes;
  out << absl::StreamFormat("bandwidth from 32 MiB on: %.1f %% of NCCL's (aim 98): %s\n",
                            100 * share, Verdict(has_large, share >= kWantedShare));
  out << absl::StreamFormat(
      "added to an operation below: %.1f us at most (aim 10): %s\n", added,
      Verdict(rows.front().size_bytes < kLargeBytes, added <= kWantedMicroseconds));
}

}  // namespace

bool RunBandwidth(const BandwidthOptions& options, const nccl::NcclLibrary& library,
                  const cuda::CudaRuntime& runtime, std::ostream& out) {
  NcclOptions nccl_options;
  nccl_options.device = 0;
  GpuWorld world(WorldSize(options.rank_count), nccl_options, /*one_device_each=*/false);
  nccl::UniqueId id;
  absl::Status status =
      library.ToStatus(library.calls().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  std::vector<absl::StatusOr<std::vector<Row>>> results(static_cast<size_t>(options.rank_count));
  if (status.ok()) {
    world.Run([&](Communicator& communicator) {
      results[static_cast<size_t>(communicator.rank().value())] =
          MeasureAll(options, library, runtime, communicator, id);
    });
  }
  for (const auto& result : results) status.Update(result.status());
  if (!status.ok()) {
    out << "bandwidth: " << status << '\n';
    return false;
  }
  Print(options.exchange, *results[0], out);
  return true;
}

}  // namespace pelton
