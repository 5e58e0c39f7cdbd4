// How a model is made over a link, and what its trainer hears of beside it. What rounds do there is
// in linked_rounds_test.cc.
#include "backend/link/linked_model.h"

#include <atomic>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/link/linked_rounds.h"
#include "backend/link/page.h"
#include "backend/link/rounds_messages.h"
#include "backend/link/test_linked_training.h"
#include "backend/link/test_links.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

ModelOptions OptionsOf(const Backend& backend) {
  ModelOptions options = TrainedModel("gradient_allreduce");
  options.group = Group::World(backend.world_size());
  return options;
}

// What two installations would do: marks of one plan's slots in another one's buckets.
TEST(LinkedModelTest, ADaemonThatHasPlannedOtherwiseIsRefused) {
  const auto plan_of = [](uint64_t bucket_size_bytes) {
    PlanOptions options;
    options.bucket_size_bytes = bucket_size_bytes;
    return Plan::Build(TrainedTensors(), options).value();
  };
  SocketPair sockets = SocketPair::Make();
  LinkedRounds::Attachment attachment;
  attachment.socket = std::move(sockets.trainer);
  attachment.page = LinkPage::Create(std::size(kTrainedCounts), 1).value();
  attachment.plan_hash = plan_of(3000).Hash();
  attachment.model_name = "net";
  attachment.rank = Rank(2);
  const absl::Status refused = LinkedRounds::Create(plan_of(1500), std::move(attachment)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  for (const char* part :
       {"rank 2", "'net'", "planned the buckets otherwise", "one installation"}) {
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }
}

TEST(LinkedModelTest, TellsTheFutureOfARound) {
  const auto ended = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(std::unique_ptr<LinkedPair> pair,
                     LinkedPair::Create(*backend, OptionsOf(*backend), TrainedTensors()));
    ModelRounds& rounds = pair->model().rounds();
    for (int round = 0; round < 3; ++round) {
      RETURN_IF_ERROR(Produce(rounds, options.rank.value(), round));
      Future<void> done = rounds.RoundDone(Soon());
      RETURN_IF_ERROR(rounds.CloseRound(std::move(done).Await(Soon())));
    }
    EXPECT_EQ(rounds.round(), Round(4));
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
}

// A trainer that goes between rounds leaves its daemon, so that the others' daemons see nothing.
TEST(LinkedModelTest, AFailureThatTheTrainerHearsOfEndsItsWaits) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    std::atomic<bool> has_failed{false};
    std::vector<std::string> told;
    LinkedJob job;
    job.on_failure = [&](const absl::Status& status) { told.emplace_back(status.message()); };
    job.failure = [&] {
      return has_failed ? absl::UnavailableError("rank 7's trainer is gone") : absl::OkStatus();
    };
    ASSIGN_OR_RETURN(
        std::unique_ptr<LinkedPair> pair,
        LinkedPair::Create(*backend, OptionsOf(*backend), TrainedTensors(), std::move(job)));
    ModelRounds& rounds = pair->model().rounds();
    RETURN_IF_ERROR(Produce(rounds, 0, 0));
    RETURN_IF_ERROR(rounds.WaitRound(Soon()));
    has_failed = true;
    for (int attempt = 0; attempt < 2; ++attempt) {
      RETURN_IF_ERROR(rounds.MarkReady(SlotId(0)));  // the other ones never come
      EXPECT_THAT(std::string(rounds.WaitRound(Soon()).message()),
                  HasSubstr("rank 7's trainer is gone"));
    }
    EXPECT_EQ(told.size(), 1U) << "once";
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

// Attaches over `sockets`, at whose other end the test is the daemon.
absl::Status AttachTo(SocketPair& sockets, LinkedJob job, absl::Time deadline) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(WorldSize(1));
  return AttachModel(std::move(sockets.trainer), std::move(job), options,
                     *MakeAlgorithm("gradient_allreduce", {}), TrainedTensors(), deadline)
      .status();
}

TEST(LinkedModelTest, AFailureThatTheTrainerHearsOfEndsTheMakingOfItsModel) {
  SocketPair sockets = SocketPair::Make();  // whose daemon says nothing
  LinkedJob job;
  job.failure = [] { return absl::UnavailableError("rank 7's trainer is gone"); };
  const absl::Status ended = AttachTo(sockets, std::move(job), Soon());
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("rank 7's trainer is gone"));
}

// The daemon gives up at the same moment, and knows better why.
TEST(LinkedModelTest, WhatTheDaemonSaysAtTheDeadlineIsHeard) {
  SocketPair sockets = SocketPair::Make();
  const absl::Time deadline = Clock::Real().Now() + absl::Milliseconds(300);
  std::thread daemon([&] {
    ASSERT_TRUE(sockets.daemon->Receive(Soon()).ok());
    EXPECT_TRUE(absl::IsDeadlineExceeded(sockets.daemon->Receive(deadline).status()));
    link::RoundsAnswer answer;
    *answer.mutable_status() = ToMessage(absl::DeadlineExceededError("missing: 1"));
    EXPECT_TRUE(sockets.daemon->Send(answer, Soon()).ok());
  });
  const absl::Status ended = AttachTo(sockets, {}, deadline);
  daemon.join();
  EXPECT_EQ(ended.message(), "missing: 1") << ended;
}

TEST(LinkedModelTest, WhatTheDaemonCannotMakeIsSaidToTheTrainer) {
  const auto ended = RunRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions wrong = OptionsOf(*backend);
    wrong.group.members = {Rank(5)};
    const absl::Status refused = LinkedPair::Create(*backend, wrong, TrainedTensors()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    std::vector<TensorSpec> on_gpu = TrainedTensors();
    on_gpu[2].device = {DeviceKind::kCuda, 0};
    const absl::Status gpu =
        AttachModel(std::move(SocketPair::Make().trainer), {.rank = Rank(0)}, OptionsOf(*backend),
                    *MakeAlgorithm("gradient_allreduce", {}), on_gpu, Soon())
            .status();
    EXPECT_EQ(gpu.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(gpu.message()), HasSubstr("make the model in the trainer"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(ended[0].ok()) << ended[0];
}

}  // namespace
}  // namespace pelton
