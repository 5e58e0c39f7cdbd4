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

// Counts its incarnations and the messages they handled.
class Worker : public Actor {
 public:
  Worker(int* made, int* handled) : handled_(*handled) { ++*made; }
  void Handle(Double question) {
    ++handled_;
    question.reply.Set(2 * question.value);
  }

 private:
  int& handled_;
};
class Boss : public Actor {};

struct Counts {
  int made = 0;
  int handled = 0;
  int answered = 0;
  absl::Duration took;
  friend bool operator==(const Counts&, const Counts&) = default;
};

// Questions to a worker while `faults` happen.
Counts AskMany(uint64_t seed, const SimFaults& faults) {
  Counts counts;
  SimExecutor executor(seed);
  SpawnOptions options;
  options.supervision.max_restarts = 1000;
  options.supervision.max_backoff = absl::Milliseconds(10);
  const auto boss = Spawn<Boss>(executor, std::move(options));
  const auto worker =
      SpawnUnder<Worker>(boss, {.on_failure = OnFailure::kRestart}, &counts.made, &counts.handled);
  executor.SetFaults(faults);
  const absl::Time began = executor.Now();
  const absl::Time deadline = began + absl::Hours(1);
  std::vector<Future<int>> answers;
  for (int i = 0; i < 50; ++i) answers.push_back(worker.Ask(Double{i, {}}, deadline));
  for (int i = 0; i < 50; ++i) {
    const auto answer = std::move(answers[static_cast<size_t>(i)]).Await(deadline);
    if (!answer.ok()) continue;
    EXPECT_EQ(*answer, 2 * i);
    ++counts.answered;
  }
  EXPECT_TRUE(worker.alive());
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
