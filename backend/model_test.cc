// A model's options, and what it takes from its backend.
#include "backend/model.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "backend/test_ranks.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/sync.h"
#include "core/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// A round of rank 0 that rank 1 takes no part in, with `timeout` for the model's operations; what
// it ends with.
absl::Status RoundAlone(absl::Duration timeout) {
  const std::vector<absl::Status> results = RunRanks(2, [&](BackendOptions options) {
    options.operation_timeout = absl::Seconds(1);
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model_options;
    model_options.name = "net";
    model_options.group = Group::World(backend->world_size());
    model_options.timeout = timeout;
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     Model::Create(*backend, model_options, {{.name = "a", .count = 1000}}));
    if (options.rank == Rank(1)) {
      // Until the job fails, of which rank 0 tells.
      return Barrier(backend->control(), "end", Clock::Real().Now() + absl::Seconds(80));
    }
    RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
    RETURN_IF_ERROR(model->rounds().EndRound());
    return model->rounds().WaitRound(Clock::Real().Now() + absl::Seconds(60));
  });
  return results[0];
}

TEST(ModelOptionsTest, AnOperationMayTakeAsLongAsTheBackendsUnlessTheModelSaysOtherwise) {
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::Seconds(2)}) {
    const absl::Time began = Clock::Real().Now();
    const absl::Status round = RoundAlone(timeout);
    EXPECT_THAT(std::string(round.message()), HasSubstr("is not done in time"));
    EXPECT_LT(Clock::Real().Now() - began, absl::Seconds(40)) << timeout;
  }
}

std::vector<std::string>& Lines() {
  static std::vector<std::string> lines;
  return lines;
}

// An error of the coordinator's would be in the log.
TEST(ModelPeersTest, TheCoordinatorChoosesThemForEachModelOfAGroup) {
  SetLogSink([](LogLevel, absl::string_view line) {
    static Mutex mutex;
    MutexLock lock(&mutex);
    Lines().emplace_back(line);
  });
  const std::vector<absl::Status> results = RunRanks(2, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    for (const char* name : {"first", "second"}) {
      ModelOptions model_options;
      model_options.name = name;
      model_options.group = Group::World(backend->world_size());
      model_options.algorithm = "decentralized";
      model_options.algorithm_options = {{"peer_selection_mode", "random_matching"}};
      ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                       Model::Create(*backend, model_options, {{.name = "a", .count = 1}}));
      for (int round = 0; round < 30; ++round) {
        RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
        RETURN_IF_ERROR(model->rounds().EndRound());
        RETURN_IF_ERROR(model->rounds().WaitRound(Soon()));
      }
    }
    return Barrier(backend->control(), "end", Soon());
  });
  SetLogSink(nullptr);
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(Lines(), Not(Contains(HasSubstr("is forgotten"))));
}

// Throws in the scheduler's turn, as a bug of the runtime would, when it is shown the first bucket.
// Threads: as RangeViewer. Owns: nothing.
class ThrowingViewer final : public RangeViewer {
 public:
  void Follow() override {}
  void Leave() override {}
  bool is_looking() const override { return true; }
  absl::AnyInvocable<void()> Begin(std::string) override {
    if (!std::exchange(has_thrown_, true)) throw std::runtime_error("a bug in a turn");
    return [] {};
  }

 private:
  bool has_thrown_ = false;
};

// The first round of a model whose scheduler throws on rank 0; what the ranks' sessions end with.
// `tells`: what the model does with a failure; null: its backend tells the other ranks.
std::vector<absl::Status> FailuresAfterAThrow(std::function<void(const absl::Status&)> tells) {
  return RunRanks(2, [&](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model_options;
    ThrowingViewer viewer;
    model_options.name = "net";
    model_options.group = Group::World(backend->world_size());
    model_options.on_failure = tells;
    if (options.rank == Rank(0)) model_options.viewer = &viewer;
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                     Model::Create(*backend, model_options, {{.name = "a", .count = 1000}}));
    // The trainer waits before the turn that throws, so that it is told by it.
    Future<void> done = model->rounds().RoundDone(Soon());
    RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
    RETURN_IF_ERROR(model->rounds().EndRound());
    const absl::Status round = model->rounds().CloseRound(std::move(done).Await(Soon()));
    EXPECT_FALSE(round.ok());
    if (options.rank == Rank(0)) {
      EXPECT_THAT(std::string(round.message()),
                  AllOf(HasSubstr("model 'net', rank 0, round 1"), HasSubstr("a bug in a turn")));
    }
    const absl::Time give_up = Soon();
    while (backend->failure().ok() && Clock::Real().Now() < give_up) std::this_thread::yield();
    return backend->failure();
  });
}

TEST(ModelFailureTest, ATurnThatThrowsEndsTheRoundsAndTheSessionsOfAllRanksWithItsOwnWords) {
  for (const absl::Status& failure : FailuresAfterAThrow(nullptr)) {
    EXPECT_THAT(std::string(failure.message()),
                AllOf(HasSubstr("'net'"), HasSubstr("a bug in a turn")));
  }
}

// A daemon's model tells its trainer alone of a round that fails.
TEST(ModelFailureTest, ASchedulerThatFailsIsItsSessionsWhateverItsRoundsTell) {
  for (const absl::Status& failure : FailuresAfterAThrow([](const absl::Status&) {})) {
    EXPECT_THAT(std::string(failure.message()),
                AllOf(HasSubstr("scheduler of 'net'"), HasSubstr("a bug in a turn")));
  }
}

}  // namespace
}  // namespace pelton
