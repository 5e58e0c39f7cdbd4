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
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backend/test_ranks.h"
#include "comm/topology/matching.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/sync.h"
#include "core/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

// Rounds of a new model of all ranks, until one has pairs that shift_one would not give: then the
// coordinator's answer has come in time. As no two pairings of four ranks share a pair, all ranks
// see it in the same round.
absl::Status AwaitChosenPeer(Backend& backend, const std::string& name) {
  ModelOptions options;
  options.name = name;
  options.group = Group::World(backend.world_size());
  options.algorithm = "decentralized";
  options.algorithm_options = {{"peer_selection_mode", "random_matching"},
                               {"hierarchical", "false"}};
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                   Model::Create(backend, options, {{.name = "number", .count = 1}}));
  auto& number = reinterpret_cast<float&>(*model->rounds().DataOf(SlotId(0)));
  const int32_t own = backend.rank().value();
  constexpr uint64_t kMostRounds = 2000;
  for (uint64_t step = 0; step < kMostRounds; ++step) {
    number = static_cast<float>(own);
    RETURN_IF_ERROR(model->rounds().MarkReady(SlotId(0)));
    RETURN_IF_ERROR(model->rounds().EndRound());
    RETURN_IF_ERROR(model->rounds().WaitRound(Soon()));
    const Rank peer(static_cast<int32_t>(2 * number) - own);
    if (peer != ShiftOnePeer({backend.rank(), backend.world_size()}, step)) return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(name, ": all rounds had shift_one's pairs"));
}

TEST(ModelPeersTest, TheCoordinatorChoosesThemForEachModelOfAGroup) {
  const std::vector<absl::Status> results = RunRanks(4, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    for (const char* name : {"first", "second"}) RETURN_IF_ERROR(AwaitChosenPeer(*backend, name));
    return Barrier(backend->control(), "end", Soon());
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
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
