// What a daemon in another process adds to a model's rounds, in turns with the same rounds in
// process: one rank, no peer. docs/daemon.md has the figures.
//
//   daemon_benchmark [turns, 15] [rounds of a turn, 2000] [buckets, 1]
//
// The bucket that is measured is the one that becomes ready last. Where there is another one, it
// has just woken the side that runs the pipelines.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "backend/link/linked_model.h"
#include "backend/link/model_server.h"
#include "backend/model.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

constexpr char kToken[] = "a-token-of-sixteen-bytes-or-more";
constexpr int32_t kTensors = 16;  // of a bucket
constexpr uint64_t kCount = 256;

std::unique_ptr<Backend> StartBackend(std::unique_ptr<CoordinatorServer>* coordinator) {
  *coordinator = *ServeCoordinatorAt("127.0.0.1:0", kToken);
  BackendOptions options;
  options.token = kToken;
  options.coordinator_address = (*coordinator)->address();
  absl::StatusOr<std::unique_ptr<Backend>> backend = Backend::Start(options);
  PELTON_CHECK_OK(backend.status());
  return *std::move(backend);
}

ModelOptions Options() {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(1));
  options.bucket_size_bytes = kTensors * kCount * sizeof(float);
  return options;
}

std::vector<TensorSpec> Tensors(int32_t bucket_count) {
  std::vector<TensorSpec> tensors;
  for (int32_t i = 0; i < kTensors * bucket_count; ++i) {
    tensors.push_back({.name = absl::StrFormat("t%d", i), .count = kCount});
  }
  return tensors;
}

[[noreturn]] void RunDaemon(int socket) {
  std::unique_ptr<CoordinatorServer> coordinator;
  const std::unique_ptr<Backend> backend = StartBackend(&coordinator);
  absl::StatusOr<std::unique_ptr<ModelServer>> server =
      ModelServer::Serve(*backend, {.socket = std::make_shared<LinkSocket>(Descriptor(socket))});
  PELTON_CHECK_OK(server.status());
  (*server)->AwaitEnd();
  _exit(0);
}

// Medians of one turn. Units: microseconds; a mark's: nanoseconds.
struct Turn {
  double bucket_us = 0;     // from before the last mark to the end of the wait
  double mark_ns = 0;       // of the marks but the last, the mean of a round
  double last_mark_ns = 0;  // of the bucket's last one
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

Turn Measure(ModelRounds& rounds, int round_count) {
  std::vector<double> buckets;
  std::vector<double> marks;
  std::vector<double> last_marks;
  const auto tensor_count = static_cast<int32_t>(rounds.plan().slots().size());
  for (int i = 0; i < round_count; ++i) {
    const int64_t begin = absl::GetCurrentTimeNanos();
    for (int32_t slot = 0; slot < tensor_count; ++slot) {
      if (slot % kTensors == 0) continue;
      PELTON_CHECK_OK(rounds.MarkReady(SlotId(slot)));
    }
    const int64_t others = absl::GetCurrentTimeNanos();
    for (int32_t slot = tensor_count - kTensors; slot > 0; slot -= kTensors) {
      PELTON_CHECK_OK(rounds.MarkReady(SlotId(slot)));
    }
    const int64_t last = absl::GetCurrentTimeNanos();
    PELTON_CHECK_OK(rounds.MarkReady(SlotId(0)));
    const int64_t marked = absl::GetCurrentTimeNanos();
    PELTON_CHECK_OK(rounds.WaitRound(Clock::Real().Now() + absl::Seconds(60)));
    const int64_t end = absl::GetCurrentTimeNanos();
    marks.push_back(static_cast<double>(others - begin) / (tensor_count / kTensors) /
                    (kTensors - 1));
    last_marks.push_back(static_cast<double>(marked - last));
    buckets.push_back(static_cast<double>(end - last) / 1000);
  }
  return {Median(buckets), Median(marks), Median(last_marks)};
}

void Print(const char* name, const std::vector<Turn>& turns) {
  std::vector<double> bucket;
  std::vector<double> mark;
  std::vector<double> last;
  for (const Turn& turn : turns) {
    bucket.push_back(turn.bucket_us);
    mark.push_back(turn.mark_ns);
    last.push_back(turn.last_mark_ns);
  }
  const auto [least, most] = std::minmax_element(bucket.begin(), bucket.end());
  absl::PrintF("%-12s bucket %7.2f us (%.2f to %.2f), mark %6.1f ns, last mark %7.1f ns\n", name,
               Median(bucket), *least, *most, Median(mark), Median(last));
}

void Run(int turn_count, int round_count, int bucket_count) {
  int ends[2];
  PELTON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const pid_t daemon = fork();  // before any thread
  PELTON_CHECK(daemon >= 0);
  if (daemon == 0) {
    close(ends[1]);
    RunDaemon(ends[0]);
  }
  close(ends[0]);
  auto linked = AttachModel(std::make_unique<LinkSocket>(Descriptor(ends[1])), {.rank = Rank(0)},
                            Options(), *MakeAlgorithm(Options().algorithm, {}),
                            Tensors(bucket_count), Clock::Real().Now() + absl::Seconds(60));
  PELTON_CHECK_OK(linked.status());
  std::unique_ptr<CoordinatorServer> coordinator;
  const std::unique_ptr<Backend> backend = StartBackend(&coordinator);
  auto local = Model::Create(*backend, Options(), Tensors(bucket_count));
  PELTON_CHECK_OK(local.status());
  std::vector<Turn> of_local;
  std::vector<Turn> of_linked;
  for (int turn = 0; turn < turn_count; ++turn) {
    of_local.push_back(Measure((*local)->rounds(), round_count));
    of_linked.push_back(Measure((*linked)->rounds(), round_count));
  }
  Print("in process", of_local);
  Print("daemon", of_linked);
  linked->reset();
  waitpid(daemon, nullptr, 0);
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  pelton::Run(argc > 1 ? std::atoi(argv[1]) : 15, argc > 2 ? std::atoi(argv[2]) : 2000,
              argc > 3 ? std::atoi(argv[3]) : 1);
}
