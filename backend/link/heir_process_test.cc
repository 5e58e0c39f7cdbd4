// A trainer that is killed, and another one that comes in its place while its peer's round is open.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "backend/link/attach.h"
#include "backend/link/link_client.h"
#include "backend/link/link_server.h"
#include "backend/link/linked_model.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr char kToken[] = "a-token-of-sixteen-bytes-or-more";
constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint64_t kCounts[] = {300, 40, 513, 33};  // the first and the third stand alone
constexpr size_t kTotal = 300 + 40 + 513 + 33;
constexpr uint64_t kSteps = 6;

absl::Time Later() { return Clock::Real().Now() + kPatience; }

using Weights = float[kTotal];

// A trainer's two snapshots, of which one counts. Threads: a value in shared memory.
struct Record {
  std::atomic<uint64_t> steps;  // done, of the snapshot that counts
  Weights weights[2];
};

// What the processes of a test share. Threads: any. Owns: nothing.
struct Board {
  std::atomic<uint32_t> is_dead;  // the victim
  std::atomic<uint32_t> is_over;
  std::atomic<uint32_t> finished[2];
  Record records[2];
};

// Threads: one. Owns: the mapping, which children share, and the folder of the daemons' sockets.
class Place {
 public:
  Place() {
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PELTON_CHECK(memory != MAP_FAILED);
    board_ = static_cast<Board*>(memory);
    char folder[] = "/tmp/pelton-heir-XXXXXX";
    PELTON_CHECK(mkdtemp(folder) != nullptr);
    folder_ = folder;
  }
  ~Place() {
    rmdir(folder_.c_str());
    munmap(board_, sizeof(Board));
  }
  Board& board() const { return *board_; }
  std::string SocketOf(int rank) const { return absl::StrCat(folder_, "/", rank); }

 private:
  Board* board_;
  std::string folder_;
};

absl::Status AwaitFlag(const std::atomic<uint32_t>& flag) {
  const absl::Time end = Later();
  while (flag.load() == 0) {
    if (Clock::Real().Now() > end) return absl::DeadlineExceededError("nobody said so");
    std::this_thread::yield();
  }
  return absl::OkStatus();
}

BackendOptions OptionsOf(int rank) {
  BackendOptions options;
  options.rank = Rank(rank);
  options.world_size = WorldSize(2);
  options.operation_timeout = options.join_timeout = kPatience;
  return options;
}

absl::Status RunDaemon(int rank, const Place& place, absl::Duration grace, Bootstrap& bootstrap) {
  std::unique_ptr<CoordinatorServer> coordinator;
  if (rank == 0) {
    ASSIGN_OR_RETURN(coordinator, ServeCoordinatorAt("127.0.0.1:0", kToken));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                   bootstrap.AllGather("address", rank == 0 ? coordinator->address() : "-",
                                       absl::Now() + kPatience));
  ASSIGN_OR_RETURN(Descriptor listener, LinkServer::Listen(place.SocketOf(rank)));
  RETURN_IF_ERROR(bootstrap.AllGather("listens", "-", absl::Now() + kPatience).status());
  BackendOptions options = OptionsOf(rank);
  options.token = kToken;
  options.coordinator_address = addresses[0];
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
  const auto server =
      LinkServer::Start(backend.get(), place.SocketOf(rank), std::move(listener), grace);
  return AwaitFlag(place.board().is_over);
}

// Threads: a value. Owns: nothing.
struct Death {
  uint32_t at = 0;  // the place of the script; 0: nowhere
  // Snapshots are copied beside the next step, and count just before its round ends.
  bool keeps_late = false;
};

// With which messages are encoded on one host, and matrices compressed from the first round on.
AlgorithmOptions OptionsOf(const std::string& algorithm) {
  if (algorithm == "bytegrad") return {{"hierarchical", "false"}};
  if (algorithm == "power_sgd") return {{"rank", "1"}, {"start_round", "1"}};
  return {};
}

// A training script that may be killed at any of the places that it counts.
// Threads: one. Owns: its weights, and memory for tensors that stand alone.
class Script {
 public:
  Script(Board& board, int rank, Death death, std::string algorithm)
      : board_(board), rank_(rank), death_(death), algorithm_(std::move(algorithm)) {}

  absl::Status Run(const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    uint64_t steps = board_.records[rank_].steps.load();
    for (size_t i = 0; i < kTotal; ++i) weights_[i] = static_cast<float>(i % 17) * 0.1F;
    if (steps > 0) std::memcpy(weights_, board_.records[rank_].weights[steps % 2], sizeof(Weights));
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(*backend, Round(steps + 1)));
    for (; steps < kSteps; Keep(++steps)) {
      RETURN_IF_ERROR(Step(model->rounds(), static_cast<int>(steps)));
    }
    Count(kSteps);
    board_.finished[rank_].store(1);
    return AwaitFlag(board_.finished[1 - rank_]);
  }

 private:
  void MayDie() {
    if (++place_ == death_.at) kill(getpid(), SIGKILL);
  }

  absl::StatusOr<std::unique_ptr<Model>> Attach(Backend& backend, Round first) {
    ModelOptions options;
    options.name = "net";
    options.group = Group::World(WorldSize(2));
    options.algorithm = algorithm_;
    options.algorithm_options = OptionsOf(algorithm_);
    options.bucket_size_bytes = 1500;
    options.standalone_bytes = 1000;
    options.timeout = kPatience;
    options.first_round = first;
    std::vector<TensorSpec> tensors;
    for (uint64_t count : kCounts) {
      tensors.push_back({.name = absl::StrCat("t", tensors.size()), .count = count});
    }
    proto::LinkHello hello;
    hello.set_purpose(proto::LinkHello::ROUNDS);
    proto::LinkWelcome welcome;
    ASSIGN_OR_RETURN(std::unique_ptr<LinkSocket> socket,
                     LinkOf(backend.control())->Connect(hello, &welcome, Later()));
    LinkedJob job;
    job.rank = backend.rank();
    job.failure = [&backend] { return backend.failure(); };
    job.standstill = &backend.absences().standstill();
    return AttachModel(std::move(socket), job, options,
                       *MakeAlgorithm(algorithm_, OptionsOf(algorithm_)), std::move(tensors),
                       Later());
  }

  float* PlaceOf(ModelRounds& rounds, int32_t slot) {
    if (!rounds.plan().slot(SlotId(slot)).standalone) {
      return reinterpret_cast<float*>(rounds.DataOf(SlotId(slot)));
    }
    std::unique_ptr<Region>& region = regions_[slot];
    if (region == nullptr) region = Region::Create(kCounts[slot] * sizeof(float), "grad").value();
    return reinterpret_cast<float*>(region->data());
  }

  absl::Status Step(ModelRounds& rounds, int step) {
    const size_t begins[] = {0, 300, 340, 853};
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t slot = (i * 3 + step) % 4;
      float* const gradient = PlaceOf(rounds, slot);
      // What a backward pass leaves there before it is through.
      std::fill(gradient, gradient + kCounts[slot], 1e6F);
      MayDie();
      for (uint64_t j = 0; j < kCounts[slot]; ++j) {
        const int number = static_cast<int>(j) * 7 + slot + rank_ * 3 + step * 5;
        gradient[j] = weights_[begins[slot] + j] * 0.1F + static_cast<float>(number % 23 - 11);
      }
      RETURN_IF_ERROR(rounds.plan().slot(SlotId(slot)).standalone
                          ? rounds.MarkReady(SlotId(slot), gradient)
                          : rounds.MarkReady(SlotId(slot)));
    }
    RETURN_IF_ERROR(rounds.EndRound());
    MayDie();
    if (death_.keeps_late) {
      Count(static_cast<uint64_t>(step));
      MayDie();
    }
    Future<void> done = rounds.RoundDone(Later());
    MayDie();
    RETURN_IF_ERROR(rounds.CloseRound(std::move(done).Await(Later())));
    for (int32_t slot = 0; slot < 4; ++slot) {
      auto* const result = reinterpret_cast<float*>(rounds.ResultOf(SlotId(slot)).data);
      for (uint64_t j = 0; j < kCounts[slot]; ++j) {
        result[j] *= 0.5F;  // as clipping does, in place
        weights_[begins[slot] + j] -= result[j];
      }
      MayDie();
    }
    return absl::OkStatus();
  }

  void Keep(uint64_t steps) {
    Record& record = board_.records[rank_];
    std::memcpy(record.weights[steps % 2], weights_, sizeof(Weights));
    MayDie();
    if (death_.keeps_late) return;
    Count(steps);
    MayDie();
  }
  // Whatever is beyond the last snapshot of a trainer that has died its heir has taken anew.
  void Count(uint64_t steps) { board_.records[rank_].steps.store(steps); }

  Board& board_;
  const int rank_;
  const Death death_;
  const std::string algorithm_;
  uint32_t place_ = 0;
  Weights weights_;
  std::unique_ptr<Region> regions_[4];
};

constexpr uint32_t kPlacesOfAStep = 12;

std::string TextOf(const absl::Status& status) { return status.ok() ? "" : status.ToString(); }

absl::Status RunTrainer(int rank, Death death, const Place& place, const std::string& algorithm,
                        bool is_heir, Bootstrap& bootstrap) {
  for (const char* key : {"address", "listens"}) {
    RETURN_IF_ERROR(bootstrap.AllGather(key, "-", absl::Now() + kPatience).status());
  }
  if (is_heir) RETURN_IF_ERROR(AwaitFlag(place.board().is_dead));
  if (is_heir && place.board().is_over.load() != 0) return absl::OkStatus();  // nobody has died
  BackendOptions options = OptionsOf(rank);
  options.coordinator_address = absl::StrCat("unix:", place.SocketOf(rank));
  return Script(place.board(), rank, death, algorithm).Run(options);
}

// Trains with rank 1 killed there. Gives the weights of both ranks.
std::string Train(const std::string& algorithm, Death death) {
  const uint32_t dies_at = death.at;
  const Place place;
  shm::Processes processes(5, [&](const TransportOptions& options) {
    const int number = options.rank.value();
    if (number < 2) {
      return TextOf(RunDaemon(number, place, absl::Seconds(30), *options.bootstrap));
    }
    const bool is_heir = number == 4;
    Death own = death;
    if (number != 3) own.at = 0;
    return TextOf(
        RunTrainer(is_heir ? 1 : number - 2, own, place, algorithm, is_heir, *options.bootstrap));
  });
  Board& board = place.board();
  const std::string first = processes.Join(3);
  if (dies_at == 0) {
    EXPECT_EQ(first, "");
    board.is_over.store(1);
  } else {
    EXPECT_THAT(first, HasSubstr("9")) << "was to be killed";
  }
  board.is_dead.store(1);
  EXPECT_EQ(processes.Join(2), "") << algorithm << ", killed at " << dies_at;
  EXPECT_EQ(processes.Join(4), "") << algorithm << ", killed at " << dies_at;
  board.is_over.store(1);
  EXPECT_EQ(processes.Join(0), "");
  EXPECT_EQ(processes.Join(1), "");
  std::string weights;
  for (const Record& record : board.records) {
    EXPECT_EQ(record.steps.load(), kSteps);
    weights.append(reinterpret_cast<const char*>(record.weights[kSteps % 2]), sizeof(Weights));
  }
  return weights;
}

// What rank 0's trainer gets where nobody comes in the place of rank 1's.
TEST(HeirProcessTest, NobodyInItsPlaceEndsTheOthersWithWhoWasAwaitedUntilWhen) {
  const Place place;
  shm::Processes processes(4, [&](const TransportOptions& options) {
    const int number = options.rank.value();
    if (number < 2) {
      return TextOf(RunDaemon(number, place, absl::Milliseconds(300), *options.bootstrap));
    }
    return TextOf(RunTrainer(number - 2, {number == 3 ? 2 * kPlacesOfAStep + 3 : 0}, place,
                             "gradient_allreduce", false, *options.bootstrap));
  });
  const pid_t victim = processes.pid(3);
  processes.Join(3);
  const std::string ended = processes.Join(2);
  EXPECT_THAT(ended, HasSubstr(absl::StrCat("rank 1's trainer (pid ", victim,
                                            ") is gone, its backend waited until ")));
  EXPECT_THAT(ended, HasSubstr(" for another"));
  place.board().is_over.store(1);
  EXPECT_EQ(processes.Join(0), "");
  EXPECT_EQ(processes.Join(1), "");
}

class HeirTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HeirTest, ATrainerInThePlaceOfOneThatWasKilledEndsWithTheSameBits) {
  const std::string undisturbed = Train(GetParam(), {});
  constexpr uint64_t kSeed = 4;
  for (uint64_t i = 0; i < 8; ++i) {
    const auto dies_at =
        static_cast<uint32_t>(1 + SplitMix(kSeed, i) % (kPlacesOfAStep * kSteps - 1));
    EXPECT_TRUE(Train(GetParam(), {dies_at}) == undisturbed) << "killed at " << dies_at;
  }
}

// Its heir has a round to repeat, and then one of which some buckets, or all, are complete.
TEST_P(HeirTest, OneWhoseSnapshotWasNotThroughWhenTheNextRoundWasOpenDoesSo) {
  const std::string undisturbed = Train(GetParam(), {.keeps_late = true});
  constexpr uint32_t kFourthStep = 3 * kPlacesOfAStep;
  // With nothing marked, some, and all; then with the snapshot through.
  for (const uint32_t place : {1, 3, 4, 5, 6}) {
    const Death death{kFourthStep + place, /*keeps_late=*/true};
    EXPECT_TRUE(Train(GetParam(), death) == undisturbed) << "killed at place " << place;
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, HeirTest,
                         ::testing::Values("gradient_allreduce", "power_sgd", "bytegrad"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace pelton
