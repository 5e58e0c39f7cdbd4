#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/promise.h"
#include "core/actor/spawn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

struct Keep {
  Promise<int> reply;
};
struct Throw {
  Promise<int> reply;
};
struct Fail {
  Promise<int> reply;
};
struct Forget {
  Promise<int> reply;
};

// Owes answers when it fails.
class Debtor final : public Actor {
 public:
  void Handle(Keep keep) { kept_.push_back(std::move(keep)); }
  void Handle(Throw) { throw std::runtime_error("a bug"); }
  absl::Status Handle(Fail) { return absl::DataLossError("a bug"); }
  void Handle(Forget) {}

 private:
  std::vector<Keep> kept_;
};

// A child whose failure is judged in another actor's turn, later.
class Boss final : public Actor {
 public:
  absl::Status OnChildFailed(const Down&) override { return absl::OkStatus(); }
};

std::string WhyOf(Future<int> answer) {
  const absl::Status status = std::move(answer).Await(Soon()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  return std::string(status.message());
}

template <typename Failure>
void ExpectReasonForAll() {
  ForEachExecutor([](Executor& executor) {
    for (const bool has_parent : {false, true}) {
      const ActorRef<Actor> boss = has_parent ? Spawn<Boss>(executor, {}) : ActorRef<Boss>();
      const auto debtor = SpawnUnder<Debtor>(boss, {.name = "debtor", .executor = &executor});
      Future<int> kept = debtor.Ask(Keep{}, Soon());
      Future<int> handled = debtor.Ask(Failure{}, Soon());
      Future<int> waiting = debtor.Ask(Keep{}, Soon());
      EXPECT_THAT(WhyOf(std::move(kept)), HasSubstr("debtor: "));
      EXPECT_THAT(WhyOf(std::move(handled)), HasSubstr("a bug"));
      // It may have been sent when the actor was over.
      const absl::Status late = std::move(waiting).Await(Soon()).status();
      EXPECT_THAT(late.ToString(), HasSubstr("a bug"));
      (void)WhenDown(debtor).Await(Soon());
      const absl::Status dead = debtor.Ask(Keep{}, Soon()).Await(Soon()).status();
      EXPECT_EQ(dead.code(), absl::StatusCode::kNotFound);
      EXPECT_THAT(dead.ToString(), HasSubstr("debtor has ended: "));
      EXPECT_THAT(dead.ToString(), HasSubstr("a bug"));
    }
  });
}

TEST(DroppedPromisesTest, WhoeverWaitsForAnActorThatThrowsIsToldWhatItHasThrown) {
  ExpectReasonForAll<Throw>();
}

TEST(DroppedPromisesTest, WhoeverWaitsForAnActorThatFailsIsToldItsReason) {
  ExpectReasonForAll<Fail>();
}

TEST(DroppedPromisesTest, WhatIsForgottenIsAnsweredAtTheEndOfTheTurn) {
  ForEachExecutor([](Executor& executor) {
    const auto debtor = Spawn<Debtor>(executor, {.name = "debtor"});
    EXPECT_EQ(WhyOf(debtor.Ask(Forget{}, Soon())), internal::DroppedPromises::kUnexplained);
  });
}

TEST(DroppedPromisesTest, AnActorThatEndsInGoodOrderIsNamed) {
  ForEachExecutor([](Executor& executor) {
    const auto debtor = Spawn<Debtor>(executor, {.name = "debtor"});
    Future<int> kept = debtor.Ask(Keep{}, Soon());
    debtor.Stop(Soon());
    EXPECT_EQ(WhyOf(std::move(kept)), "debtor has ended");
  });
}

TEST(DroppedPromisesTest, AnActorThatTheSimulationCrashesSaysSo) {
  SimExecutor executor(1);
  const auto boss = Spawn<Boss>(executor, {});
  const auto debtor =
      SpawnUnder<Debtor>(boss, {.name = "debtor", .on_failure = OnFailure::kRestart});
  Future<int> kept = debtor.Ask(Keep{}, Soon());
  executor.RunUntilIdle();
  executor.SetFaults({.crash_one_in = 1});
  Future<int> late = debtor.Ask(Keep{}, Soon());
  executor.RunFor(absl::Milliseconds(1));
  EXPECT_EQ(WhyOf(std::move(kept)), "debtor: a crash that the simulation chose");
}

TEST(DroppedPromisesTest, WhatAnAnswerDropsIsAnsweredToo) {
  auto [promise, future] = MakePromise<int>();
  internal::DroppedPromises turn;
  turn.Add(&promise, [](void* next, absl::string_view) { *static_cast<Promise<int>*>(next) = {}; });
  EXPECT_FALSE(future.ready());
  turn.Answer("why");
  EXPECT_EQ(WhyOf(std::move(future)), "why");
}

}  // namespace
}  // namespace pelton
