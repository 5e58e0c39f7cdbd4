// Rounds that ranks do not share, between processes of which one dies: the other's edge with it
// fails by its name.
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "comm/tiers.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/clock.h"
#include "core/base/moving_deadline.h"
#include "core/base/status.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Of two: a survivor that has ended with its error would be another rank that is lost.
constexpr int kRanks = 2;
constexpr int kDead = 1;
constexpr uint64_t kCount = 100;

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(60); }

// Windows between processes. Threads: as WindowSource. Owns: nothing.
class ProcessWindows final : public WindowSource {
 public:
  ProcessWindows(Communicator& all, std::shared_ptr<const PeerProcesses> processes)
      : all_(all), processes_(std::move(processes)) {}
  absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) override {
    return CreateWindow(all_, processes_, std::move(options), Soon());
  }
  MovingDeadline deadline() const override { return Soon(); }

 private:
  Communicator& all_;
  const std::shared_ptr<const PeerProcesses> processes_;  // shared: as the windows'
};

// One rank of a model. Threads: one. Owns: all of it.
struct Rig {
  shm::End end;
  std::shared_ptr<const PeerProcesses> processes;  // shared: as the windows'
  std::unique_ptr<ProcessWindows> windows;
  std::unique_ptr<Algorithm> algorithm;
  std::unique_ptr<ModelRounds> rounds;

  static absl::StatusOr<std::unique_ptr<Rig>> Make(const TransportOptions& transport,
                                                   const std::string& algorithm) {
    auto rig = std::make_unique<Rig>();
    ASSIGN_OR_RETURN(rig->end, shm::MakeEnd(transport, MakeShmTransport));
    Communicator& all = *rig->end.communicator;
    ASSIGN_OR_RETURN(rig->processes, PeerProcesses::Meet(all, Soon()));
    rig->windows = std::make_unique<ProcessWindows>(all, rig->processes);
    ASSIGN_OR_RETURN(rig->algorithm, MakeAlgorithm(algorithm, {{"graph", "ring"}}));
    PlanOptions plan;
    plan.world_size = transport.world_size;
    plan.constraints = rig->algorithm->Constraints();
    ModelRoundsOptions options;
    options.rank = transport.rank;
    options.runner = &all;
    options.pipeline_factory = [here = rig.get()](const BucketLayout& layout) {
      Tiers tiers = Tiers::Of(*here->end.communicator);
      tiers.windows = here->windows.get();
      return MakePipeline(*here->algorithm, layout, tiers);
    };
    ASSIGN_OR_RETURN(const Plan one_tensor, Plan::Build({{.name = "a", .count = kCount}}, plan));
    ASSIGN_OR_RETURN(rig->rounds, ModelRounds::Create(one_tensor, std::move(options)));
    return rig;
  }

  absl::Status Run() const {
    std::memset(rounds->DataOf(SlotId(0)), 0, kCount * sizeof(float));
    RETURN_IF_ERROR(rounds->MarkReady(SlotId(0)));
    RETURN_IF_ERROR(rounds->EndRound());
    return rounds->WaitRound(Soon());
  }
};

// Rounds after the death until an error comes, and what is wrong with that.
std::string Survive(const Rig& rig, int rank) {
  shm::Processes::Mark(rank);
  const absl::Time give_up = Soon();
  while (rig.processes->Check(Rank(kDead)).ok() && Clock::Real().Now() < give_up) {
    std::this_thread::yield();
  }
  absl::Status status;
  while (status.ok() && Clock::Real().Now() < give_up) status = rig.Run();
  const std::string edge = absl::StrCat("edge with rank ", kDead, ": rank ", kDead, " (process ");
  if (absl::IsUnavailable(status) && absl::StrContains(status.message(), edge)) return "";
  return absl::StrCat("rank ", rank, ": ", status.ToString());
}

class LostRankTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LostRankTest, TheEdgeOfARankThatHasDiedFailsByItsName) {
  const std::string algorithm = GetParam();
  shm::Processes processes(kRanks, [&](const TransportOptions& options) -> std::string {
    const int rank = options.rank.value();
    const absl::StatusOr<std::unique_ptr<Rig>> rig = Rig::Make(options, algorithm);
    if (!rig.ok()) return rig.status().ToString();
    if (rank != kDead) return Survive(**rig, rank);
    shm::Processes::Mark(rank);
    while (true) pause();
  });
  for (int rank = 0; rank < kRanks; ++rank) processes.AwaitMark(rank, 1);
  ASSERT_EQ(kill(processes.pid(kDead), SIGKILL), 0);
  EXPECT_EQ(processes.Join(0), "");
}

INSTANTIATE_TEST_SUITE_P(All, LostRankTest,
                         ::testing::Values("asynchronous_pairs", "asynchronous_push_sum"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace pelton
