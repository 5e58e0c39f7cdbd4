// Which children are restarted, in which order, and what their parent makes of the others' failure.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/actor/context.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct FailNow {};
struct StopYourself {};

// What happened, in order.
using Events = std::vector<std::string>;

// Says when it starts and stops; fails in OnStart for as long as `*bad_starts` is positive.
class Child : public Actor {
 public:
  Child(std::string name, Events* events, int* bad_starts)
      : name_(std::move(name)), events_(*events), bad_starts_(bad_starts) {}
  absl::Status OnStart() override {
    events_.push_back("start " + name_);
    if (bad_starts_ != nullptr && *bad_starts_ != 0 && --*bad_starts_ >= 0) {
      return absl::UnavailableError("a bad start");
    }
    return absl::OkStatus();
  }
  void OnStop(const absl::Status&) override { events_.push_back("stop " + name_); }
  absl::Status Handle(FailNow) { return absl::DataLossError("lost it"); }
  void Handle(StopYourself) { context().Stop(); }

 private:
  const std::string name_;
  Events& events_;
  int* const bad_starts_;
};

class Parent : public Actor {
 public:
  explicit Parent(bool goes_on, Events* events) : goes_on_(goes_on), events_(*events) {}
  absl::Status OnChildFailed(const Down& child) override {
    events_.push_back(absl::StrCat(child.name, " failed: ", child.why.message()));
    return goes_on_ ? absl::OkStatus() : child.why;
  }

 private:
  const bool goes_on_;
  Events& events_;
};

// A parent and its children in virtual time.
class Family {
 public:
  Family(uint64_t seed, RestartStrategy strategy, bool goes_on = false) : executor(seed) {
    SpawnOptions options;
    options.supervision.strategy = strategy;
    options.supervision.max_restarts = 10;
    parent = Spawn<Parent>(executor, std::move(options), goes_on, &events);
  }
  ActorRef<Child> Add(const std::string& name, OnFailure on_failure, int* bad_starts = nullptr) {
    const ActorRef<Child> child = SpawnUnder<Child>(
        parent, {.name = name, .on_failure = on_failure}, name, &events, bad_starts);
    executor.RunFor(absl::Seconds(1));
    return child;
  }
  void Pass() { executor.RunFor(absl::Minutes(1)); }

  Events events;
  SimExecutor executor;
  ActorRef<Parent> parent;
};

TEST(ChildrenTest, APermanentChildIsRestartedAlsoWhereItIsStopped) {
  ForEachSeed(20, [](uint64_t seed) {
    Family family(seed, RestartStrategy::kOneForOne);
    const auto child = family.Add("a", OnFailure::kAlwaysRestart);
    ASSERT_TRUE(child.Send(StopYourself{}).ok());
    family.Pass();
    EXPECT_EQ(family.events, (Events{"start a", "stop a", "start a"}));
    child.Stop(Soon());
    family.Pass();
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    family.Pass();
    EXPECT_EQ(family.events.size(), 7u);
    EXPECT_TRUE(child.alive());
    EXPECT_TRUE(StopAndWait(family.parent, Soon()).ok());
    EXPECT_FALSE(child.alive()) << "its parent's end ends it";
    EXPECT_EQ(family.events.back(), "stop a");
  });
}

TEST(ChildrenTest, ATransientChildThatStopsIsNotRestartedAndOneThatFailsIs) {
  Family family(1, RestartStrategy::kOneForOne);
  const auto child = family.Add("a", OnFailure::kRestart);
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  family.Pass();
  EXPECT_TRUE(child.alive());
  ASSERT_TRUE(child.Send(StopYourself{}).ok());
  family.Pass();
  EXPECT_FALSE(child.alive());
  EXPECT_TRUE(family.parent.alive());
}

TEST(ChildrenTest, ThoseThatAreRestartedTogetherBeginInTheOrderOfTheirSpawning) {
  ForEachSeed(100, [](uint64_t seed) {
    Family family(seed, RestartStrategy::kOneForAll);
    const auto a = family.Add("a", OnFailure::kRestart);
    const auto b = family.Add("b", OnFailure::kRestart);
    const auto c = family.Add("c", OnFailure::kRestart);
    family.events.clear();
    ASSERT_TRUE(b.Send(FailNow{}).ok());
    family.Pass();
    ASSERT_EQ(family.events.size(), 6u);
    EXPECT_EQ(Events(family.events.begin() + 3, family.events.end()),
              (Events{"start a", "start b", "start c"}));
  });
}

// The one in the middle fails as it starts again: those behind it wait for the next round.
TEST(ChildrenTest, AFailureAmongThoseThatBeginBeginsAgainInOrder) {
  ForEachSeed(100, [](uint64_t seed) {
    for (const auto strategy : {RestartStrategy::kOneForAll, RestartStrategy::kRestForOne}) {
      Family family(seed, strategy);
      int bad_starts = 0;
      const auto a = family.Add("a", OnFailure::kRestart);
      const auto b = family.Add("b", OnFailure::kRestart, &bad_starts);
      const auto c = family.Add("c", OnFailure::kRestart);
      bad_starts = 2;
      ASSERT_TRUE(a.Send(FailNow{}).ok());
      family.Pass();
      EXPECT_EQ(bad_starts, 0);
      ASSERT_GE(family.events.size(), 3u);
      EXPECT_EQ(Events(family.events.end() - 2, family.events.end()),
                (Events{"start b", "start c"}));
      for (const auto& child : {a, b, c}) EXPECT_TRUE(child.Send(StopYourself{}).ok());
    }
  });
}

// One that is told to end while it is awaited does not keep the others waiting.
TEST(ChildrenTest, OneThatEndsAmongThoseThatBeginIsLeftOut) {
  ForEachSeed(100, [](uint64_t seed) {
    Family family(seed, RestartStrategy::kOneForAll);
    const auto a = family.Add("a", OnFailure::kRestart);
    const auto b = family.Add("b", OnFailure::kRestart);
    const auto c = family.Add("c", OnFailure::kRestart);
    ASSERT_TRUE(c.Send(FailNow{}).ok());
    family.executor.RunFor(absl::Milliseconds(static_cast<int64_t>(seed % 20)));
    b.Stop(Soon());
    family.Pass();
    EXPECT_TRUE(a.alive());
    EXPECT_TRUE(c.alive());
    EXPECT_FALSE(b.alive());
    EXPECT_EQ(std::count(family.events.begin(), family.events.end(), "start c"), 2);
  });
}

TEST(ChildrenTest, AParentThatKnowsToGoOnDoes) {
  ForEachSeed(20, [](uint64_t seed) {
    Family family(seed, RestartStrategy::kOneForOne, /*goes_on=*/true);
    const auto child = family.Add("part", OnFailure::kEscalate);
    ASSERT_TRUE(child.Send(FailNow{}).ok());
    family.Pass();
    EXPECT_FALSE(child.alive());
    EXPECT_TRUE(family.parent.alive());
    EXPECT_EQ(family.events.back(), "part failed: lost it");
  });
}

TEST(ChildrenTest, AParentThatDoesNotEndsWithTheReason) {
  Family family(1, RestartStrategy::kOneForOne);
  const auto child = family.Add("part", OnFailure::kEscalate);
  auto down = WhenDown(family.parent);
  ASSERT_TRUE(child.Send(FailNow{}).ok());
  family.Pass();
  const auto end = std::move(down).Await(Soon());
  ASSERT_TRUE(end.ok());
  EXPECT_TRUE(absl::StrContains(end->why.message(), "lost it")) << end->why;
}

TEST(ChildrenTest, AChildOfOneThatHasEndedEndsToo) {
  ForEachExecutor([](Executor& executor) {
    Events events;
    const auto parent = Spawn<Parent>(executor, {}, false, &events);
    EXPECT_TRUE(StopAndWait(parent, Soon()).ok());
    const auto child = SpawnUnder<Child>(parent, {}, "late", &events, nullptr);
    EXPECT_TRUE(WhenDown(child).Await(Soon()).ok());
  });
}

}  // namespace
}  // namespace pelton
