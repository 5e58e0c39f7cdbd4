// Crashes and late turns that a simulation's seed chooses.
#include <utility>
#include <vector>

#include "core/actor/context.h"
#include "core/actor/monitor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Double {
  int value;
  Promise<int> reply;
};

struct Collect {
  Promise<int> reply;
};

// Counts its incarnations and the messages they handled.
class TestChild : public Actor {
 public:
  TestChild(int* made, int* handled) : handled_(*handled) { ++*made; }
  void Handle(Double question) {
    ++handled_;
    question.reply.Set(2 * question.value);
  }

 private:
  int& handled_;
};
// Answers each question with the next one, so that it owes one answer at most.
class Collector : public Actor {
 public:
  explicit Collector(std::vector<int>* waiting_at_end) : waiting_at_end_(*waiting_at_end) {}
  void Handle(Collect question) {
    if (owed_.valid()) {
      owed_.Set(1);
      question.reply.Set(2);
      owed_ = {};
    } else {
      owed_ = std::move(question.reply);
    }
  }
  void OnStop(const absl::Status& why) override {
    if (!why.ok()) waiting_at_end_.push_back(owed_.valid() ? 1 : 0);
  }

 private:
  std::vector<int>& waiting_at_end_;
  Promise<int> owed_;
};
class Boss : public Actor {};

struct Counts {
  int made = 0;
  int handled = 0;
  int answered = 0;
  absl::Duration took;
  friend bool operator==(const Counts&, const Counts&) = default;
};

// Questions to a child while `faults` happen.
Counts AskMany(uint64_t seed, const SimFaults& faults) {
  Counts counts;
  SimExecutor executor(seed);
  SpawnOptions options;
  options.supervision.max_restarts = 1000;
  options.supervision.max_backoff = absl::Milliseconds(10);
  const auto boss = Spawn<Boss>(executor, std::move(options));
  const auto child = SpawnUnder<TestChild>(boss, {.on_failure = OnFailure::kRestart}, &counts.made,
                                           &counts.handled);
  executor.SetFaults(faults);
  const absl::Time began = executor.Now();
  const absl::Time deadline = began + absl::Hours(1);
  std::vector<Future<int>> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(child.Ask(Double{i, {}}, deadline));
  for (int i = 0; i < 50; ++i) {
    const auto answer = std::move(answers[static_cast<size_t>(i)]).Await(deadline);
    if (!answer.ok()) continue;
    EXPECT_EQ(*answer, 2 * i);
    ++counts.answered;
  }
  EXPECT_TRUE(child.alive());
  counts.took = executor.Now() - began;
  return counts;
}

TEST(SimFaultsTest, CrashesLoseNoMessageThatWaits) {
  int restarts = 0;
  const uint64_t seeds = ForEachSeed(50, [&](uint64_t seed) {
    const Counts counts = AskMany(seed, {.crash_one_in = 5});
    EXPECT_EQ(counts.answered, 50) << "a mailbox is kept, and a crash comes between messages";
    restarts += counts.made - 1;
  });
  EXPECT_GT(restarts, static_cast<int>(seeds));
}

TEST(SimFaultsTest, AnActorThatCrashesInEachTurnHandlesMessagesBetweenCrashes) {
  ForEachSeed(50, [](uint64_t seed) {
    const Counts counts = AskMany(seed, {.crash_one_in = 1});
    EXPECT_EQ(counts.answered, 50);
    EXPECT_GT(counts.made, 50 / 4);
  });
}

// In one mailbox when the faults begin, so that a turn has more than one message.
TEST(SimFaultsTest, ACrashBetweenTwoMessagesOfATurnLosesWhatTheActorOwedAndNoMore) {
  int crashes_that_owed = 0;
  int crashes = 0;
  ForEachSeed(200, [&](uint64_t seed) {
    std::vector<int> waiting_at_end;
    SimExecutor executor(seed);
    SpawnOptions options;
    options.supervision.max_restarts = 1000;
    options.supervision.max_backoff = absl::Milliseconds(10);
    const auto boss = Spawn<Boss>(executor, std::move(options));
    const auto collector =
        SpawnUnder<Collector>(boss, {.on_failure = OnFailure::kRestart}, &waiting_at_end);
    const absl::Time deadline = executor.Now() + absl::Hours(1);
    std::vector<Future<int>> answers;
    for (int i = 0; i < 20; ++i) answers.push_back(collector.Ask(Collect{}, deadline));
    executor.SetFaults({.crash_one_in = 5});
    executor.RunFor(absl::Minutes(1));
    executor.SetFaults({});
    const auto last = collector.Ask(Collect{}, deadline);
    executor.RunFor(absl::Minutes(1));
    int lost = 0;
    int open = 0;
    for (Future<int>& answer : answers) {
      if (!answer.ready()) {
        ++open;
        continue;
      }
      const absl::Status status = std::move(answer).Take().status();
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      ++lost;
    }
    EXPECT_LE(open, last.ready() ? 0 : 1) << "the one that the last incarnation owes";
    int owed = 0;
    for (const int each : waiting_at_end) owed += each;
    EXPECT_EQ(lost, owed);
    crashes_that_owed += owed;
    crashes += static_cast<int>(waiting_at_end.size());
  });
  EXPECT_GT(crashes_that_owed, 0);
  EXPECT_GT(crashes, crashes_that_owed);
}

TEST(SimFaultsTest, LateTurnsTakeTimeAndLoseNothing) {
  ForEachSeed(50, [](uint64_t seed) {
    EXPECT_EQ(AskMany(seed, {}).took, absl::ZeroDuration());
    const Counts counts = AskMany(seed, {.delay_one_in = 2, .longest_delay = absl::Seconds(1)});
    EXPECT_EQ(counts.answered, 50);
    EXPECT_GT(counts.took, absl::ZeroDuration());
  });
}

TEST(SimFaultsTest, TheSeedChoosesThem) {
  const SimFaults faults{.crash_one_in = 7, .delay_one_in = 3};
  EXPECT_EQ(AskMany(11, faults), AskMany(11, faults));
}

}  // namespace
}  // namespace pelton
