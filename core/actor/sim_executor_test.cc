#include "core/actor/sim_executor.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Say {
  int number;
};
// Writes who said what; asks itself to say more after a random delay.
class Speaker : public Actor {
 public:
  Speaker(SimExecutor* executor, std::string* story, char name)
      : executor_(executor), story_(story), name_(name) {}
  void Handle(Say say) {
    absl::StrAppend(story_, std::string(1, name_), say.number, " ");
    if (say.number == 0) return;
    context().SendAfter(*this, absl::Milliseconds(executor_->Uniform(5)), Say{say.number - 1});
  }

 private:
  SimExecutor* executor_;
  std::string* story_;
  char name_;
};

std::string Story(uint64_t seed) {
  std::string story;
  SimExecutor executor(seed);
  for (char name : {'a', 'b', 'c'}) {
    const auto speaker = Spawn<Speaker>(executor, {}, &executor, &story, name);
    EXPECT_TRUE(speaker.Send(Say{3}).ok());
  }
  executor.RunUntilIdle();
  return story;
}

TEST(SimExecutorTest, TheSeedDecidesTheInterleaving) {
  std::set<std::string> stories;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    EXPECT_EQ(Story(seed), Story(seed));
    stories.insert(Story(seed));
  }
  EXPECT_GT(stories.size(), 90u);
}

struct Start {
  int sends;
};
struct Lost {};
// The classic lost update: reads a shared cell in one turn and writes it in a later one.
class Racer : public Actor {
 public:
  explicit Racer(int* shared) : shared_(shared) {}
  absl::Status Handle(Start) {
    read_ = *shared_;
    return context().RefTo(*this).Send(Lost{});
  }
  void Handle(Lost) { *shared_ = read_ + 1; }

 private:
  int* shared_;
  int read_ = 0;
};

TEST(SimExecutorTest, FindsBothOutcomesOfARace) {
  std::set<int> outcomes;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    int shared = 0;
    SimExecutor executor(seed);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Spawn<Racer>(executor, {}, &shared).Send(Start{}).ok());
    executor.RunUntilIdle();
    outcomes.insert(shared);
  }
  EXPECT_EQ(outcomes, (std::set<int>{1, 2}));
}

TEST(SimExecutorTest, RunUntilStopsAtThePredicateOrAtTheDeadline) {
  std::string story;
  SimExecutor executor(1);
  const absl::Time begin = executor.Now();
  const auto speaker = Spawn<Speaker>(executor, {}, &executor, &story, 'a');
  ASSERT_TRUE(speaker.Send(Say{1}).ok());
  EXPECT_TRUE(executor.RunUntil([&] { return story == "a1 "; }, absl::InfiniteFuture()));
  EXPECT_EQ(executor.Now(), begin);
  EXPECT_FALSE(executor.RunUntil([] { return false; }, begin + absl::Seconds(1)));
  EXPECT_EQ(executor.Now(), begin + absl::Seconds(1));
  EXPECT_EQ(story, "a1 a0 ");
}

TEST(SimExecutorTest, AWaitOnItsThreadRunsTheSimulationInVirtualTime) {
  SimExecutor executor(1);
  auto [promise, future] = MakePromise<int>();
  const absl::Time begin = executor.Now();
  EXPECT_EQ(std::move(future).Await(begin + absl::Hours(5)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(executor.Now(), begin + absl::Hours(5));
}

struct Block {};
class Blocker : public Actor {
 public:
  void Handle(Block) {
    auto [promise, future] = MakePromise<int>();
    std::move(future).Await(context().Now() + absl::Seconds(1)).IgnoreError();
  }
};

TEST(SimExecutorDeathTest, ATurnThatBlocksIsAnError) {
  const auto block = [] {
    SimExecutor executor(1);
    const auto blocker = Spawn<Blocker>(executor, {});
    EXPECT_TRUE(blocker.Send(Block{}).ok());
    executor.RunUntilIdle();
  };
  EXPECT_DEATH(block(), "a turn must not block");
}

TEST(SimExecutorTest, TenThousandActorsLiveInOneThread) {
  SimExecutor executor(1);
  std::string story;
  std::vector<ActorRef<Speaker>> speakers;
  for (int i = 0; i < 10'000; ++i) {
    speakers.push_back(Spawn<Speaker>(executor, {}, &executor, &story, 'a'));
    ASSERT_TRUE(speakers.back().Send(Say{0}).ok());
  }
  executor.RunUntilIdle();
  EXPECT_EQ(story.size(), 30'000u);
  EXPECT_EQ(executor.actor_count(), 10'000u);
}

}  // namespace
}  // namespace pelton
