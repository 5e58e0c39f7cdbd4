// Trainers and daemons as processes of their own, and what is left of one when the other is killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/link/test_links.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint64_t kCount = 4096;

absl::Time Later() { return Clock::Real().Now() + kPatience; }

ModelOptions Options(int world_size) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(world_size));
  options.timeout = kPatience;
  return options;
}

std::vector<TensorSpec> Tensors() {
  return {{.name = "a", .count = kCount}, {.name = "b", .count = 10}};
}

// Serves one trainer until it has gone.
absl::Status RunDaemon(int rank, int world_size, Bootstrap& bootstrap,
                       std::unique_ptr<LinkSocket> socket) {
  std::unique_ptr<CoordinatorServer> coordinator;
  if (rank == 0) {
    ASSIGN_OR_RETURN(coordinator, ServeCoordinatorAt("127.0.0.1:0", kToken));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                   bootstrap.AllGather("address", rank == 0 ? coordinator->address() : "-",
                                       absl::Now() + kPatience));
  BackendOptions options;
  options.rank = Rank(rank);
  options.world_size = WorldSize(world_size);
  options.token = kToken;
  options.coordinator_address = addresses[0];
  options.operation_timeout = options.join_timeout = kPatience;
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
  {
    ASSIGN_OR_RETURN(std::unique_ptr<ModelServer> server,
                     ModelServer::Serve(*backend, {.socket = std::move(socket)}));
    const absl::Time end = Later();
    while (!server->is_over()) {
      if (Clock::Real().Now() > end) return absl::DeadlineExceededError("the trainer stays");
      std::this_thread::yield();
    }
  }
  // Alone it has nobody to wait for; a death in a round has made its job fail.
  return world_size == 1 ? absl::OkStatus() : Barrier(backend->control(), "end", Later());
}

absl::StatusOr<std::unique_ptr<Model>> Attach(int rank, int world_size,
                                              std::unique_ptr<LinkSocket> socket) {
  return AttachModel(std::move(socket), {.rank = Rank(rank)}, Options(world_size),
                     *MakeAlgorithm("gradient_allreduce", {}), Tensors(), Later());
}

absl::Status Round(ModelRounds& rounds, float value) {
  for (int32_t slot : {1, 0}) {
    auto* const values = reinterpret_cast<float*>(rounds.DataOf(SlotId(slot)));
    std::fill(values, values + (slot == 0 ? kCount : 10), value);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  RETURN_IF_ERROR(rounds.EndRound());
  return rounds.WaitRound(Later());
}

std::string TextOf(const absl::Status& status) { return status.ok() ? "" : status.ToString(); }

TEST(LinkedProcessTest, TwoTrainersAndTheirDaemonsAverage) {
  SocketPair links[2] = {SocketPair::Make(), SocketPair::Make()};
  // The daemons' addresses are told to all four.
  shm::Processes processes(4, [&](const TransportOptions& options) {
    const int place = options.rank.value();
    const int rank = place % 2;
    auto daemon = std::move(links[rank].daemon);
    auto trainer = std::move(links[rank].trainer);
    links[1 - rank] = {};
    if (place < 2) {
      trainer.reset();
      return TextOf(RunDaemon(rank, 2, *options.bootstrap, std::move(daemon)));
    }
    daemon.reset();
    return TextOf([&]() -> absl::Status {
      RETURN_IF_ERROR(
          options.bootstrap->AllGather("address", "-", absl::Now() + kPatience).status());
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(rank, 2, std::move(trainer)));
      for (int round = 1; round <= 200; ++round) {
        RETURN_IF_ERROR(Round(model->rounds(), static_cast<float>(round * (1 + 2 * rank))));
        float last = 0;
        std::memcpy(&last, model->rounds().ResultOf(SlotId(0)).data + (kCount - 1) * sizeof(last),
                    sizeof(last));
        if (last == static_cast<float>(2 * round)) continue;
        return absl::DataLossError(absl::StrCat("round ", round, ": ", last));
      }
      return absl::OkStatus();
    }());
  });
  for (SocketPair& link : links) link = {};
  EXPECT_EQ(processes.JoinAll(), "");
}

TEST(LinkedProcessTest, ATrainerThatIsKilledLeavesItsDaemon) {
  for (const uint32_t rounds : {1U, 7U, 40U}) {
    SocketPair link = SocketPair::Make();
    shm::Processes processes(2, [&](const TransportOptions& options) {
      auto daemon = std::move(link.daemon);
      auto trainer = std::move(link.trainer);
      if (options.rank == Rank(0)) {
        trainer.reset();
        return TextOf(RunDaemon(0, 1, *options.bootstrap, std::move(daemon)));
      }
      daemon.reset();
      return TextOf([&]() -> absl::Status {
        RETURN_IF_ERROR(
            options.bootstrap->AllGather("address", "-", absl::Now() + kPatience).status());
        ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(0, 1, std::move(trainer)));
        while (true) {
          RETURN_IF_ERROR(Round(model->rounds(), 1));
          shm::Processes::Mark(1);
        }
      }());
    });
    link = {};
    processes.AwaitMark(1, rounds);
    kill(processes.pid(1), SIGKILL);
    EXPECT_EQ(processes.Join(0), "") << "killed after " << rounds << " rounds";
  }
}

TEST(LinkedProcessTest, ADaemonThatIsKilledEndsItsTrainersWait) {
  SocketPair link = SocketPair::Make();
  shm::Processes processes(2, [&](const TransportOptions& options) {
    auto daemon = std::move(link.daemon);
    auto trainer = std::move(link.trainer);
    if (options.rank == Rank(0)) {
      trainer.reset();
      return TextOf(RunDaemon(0, 1, *options.bootstrap, std::move(daemon)));
    }
    daemon.reset();
    return TextOf([&]() -> absl::Status {
      RETURN_IF_ERROR(
          options.bootstrap->AllGather("address", "-", absl::Now() + kPatience).status());
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(0, 1, std::move(trainer)));
      ModelRounds& rounds = model->rounds();
      RETURN_IF_ERROR(Round(rounds, 3));
      RETURN_IF_ERROR(rounds.MarkReady(SlotId(1)));  // the other one never comes
      shm::Processes::Mark(1);
      const absl::Status ended = rounds.WaitRound(Later());
      const float kept = *reinterpret_cast<const float*>(rounds.DataOf(SlotId(0)));
      if (absl::IsUnavailable(ended) && kept == 3.0F) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat(kept, ": ", ended.ToString()));
    }());
  });
  link = {};
  processes.AwaitMark(1, 1);
  kill(processes.pid(0), SIGKILL);
  const absl::Time killed = Clock::Real().Now();
  EXPECT_EQ(processes.Join(1), "");
  EXPECT_LT(Clock::Real().Now() - killed, kPatience / 3);
}

// A child that takes the trainer's model for its own: fills both tensors and marks them.
void MarkInChild(ModelRounds& rounds) {
  const pid_t child = fork();
  if (child == 0) {
    for (int32_t slot : {1, 0}) {
      auto* const values = reinterpret_cast<float*>(rounds.DataOf(SlotId(slot)));
      std::fill(values, values + (slot == 0 ? kCount : 10), 999.0F);
      rounds.MarkReady(SlotId(slot)).IgnoreError();
    }
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

TEST(LinkedProcessTest, AForkedChildWritesNeitherBucketsNorPage) {
  SocketPair link = SocketPair::Make();
  shm::Processes processes(2, [&](const TransportOptions& options) {
    auto daemon = std::move(link.daemon);
    auto trainer = std::move(link.trainer);
    if (options.rank == Rank(0)) {
      trainer.reset();
      return TextOf(RunDaemon(0, 1, *options.bootstrap, std::move(daemon)));
    }
    daemon.reset();
    return TextOf([&]() -> absl::Status {
      RETURN_IF_ERROR(
          options.bootstrap->AllGather("address", "-", absl::Now() + kPatience).status());
      WatchForks();
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(0, 1, std::move(trainer)));
      ModelRounds& rounds = model->rounds();
      RETURN_IF_ERROR(Round(rounds, 3));
      MarkInChild(rounds);
      const float kept = *reinterpret_cast<const float*>(rounds.DataOf(SlotId(0)));
      // The daemon must not take the child's marks for this process's, which has made none.
      const absl::Status ended = rounds.WaitRound(Clock::Real().Now() + absl::Milliseconds(300));
      if (absl::IsDeadlineExceeded(ended) && kept == 3.0F) return absl::OkStatus();
      return absl::DataLossError(absl::StrCat(kept, ": ", ended.ToString()));
    }());
  });
  link = {};
  EXPECT_EQ(processes.JoinAll(), "");
}

TEST(LinkedProcessTest, ADaemonThatStandsStillIsNamedAfterTheDeadline) {
  SocketPair link = SocketPair::Make();
  shm::Processes processes(2, [&](const TransportOptions& options) {
    auto daemon = std::move(link.daemon);
    auto trainer = std::move(link.trainer);
    if (options.rank == Rank(0)) {
      trainer.reset();
      return TextOf(RunDaemon(0, 1, *options.bootstrap, std::move(daemon)));
    }
    daemon.reset();
    return TextOf([&]() -> absl::Status {
      RETURN_IF_ERROR(
          options.bootstrap->AllGather("address", "-", absl::Now() + kPatience).status());
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Attach(0, 1, std::move(trainer)));
      ModelRounds& rounds = model->rounds();
      RETURN_IF_ERROR(Round(rounds, 3));
      shm::Processes::Mark(1);
      absl::Status ended;
      while (ended.ok()) {
        for (int32_t slot : {1, 0}) RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
        RETURN_IF_ERROR(rounds.EndRound());
        ended = rounds.WaitRound(Clock::Real().Now() + absl::Seconds(1));
      }
      const bool is_named =
          absl::StrContains(ended.message(), "the pelton-daemon of rank 0 (pid ") &&
          absl::StrContains(ended.message(), "has not answered for ");
      return absl::IsDeadlineExceeded(ended) && is_named ? absl::OkStatus() : ended;
    }());
  });
  link = {};
  processes.AwaitMark(1, 1);
  kill(processes.pid(0), SIGSTOP);
  EXPECT_EQ(processes.Join(1), "");
  kill(processes.pid(0), SIGCONT);
  EXPECT_EQ(processes.Join(0), "");
}

}  // namespace
}  // namespace pelton
