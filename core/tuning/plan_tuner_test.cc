// The tuner among planted plans: steps are a plan's time and noise from a seed.
#include "core/tuning/plan_tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSeeds = 200;
constexpr int kTunings = 1000;

// What training looks like to the tuner.
struct World {
  std::vector<double> step_s = {};       // by plan
  std::vector<double> predicted_s = {};  // by plan
  double noise = 0;                      // standard deviation, as a share of the step
  double drift = 0;     // by which each step is longer than the one before, as a share
  double outliers = 0;  // share of the steps that take five times as long
  // As on a machine that others use: of so many steps each begins a time in which all steps take
  // half as long again, for eight steps in the mean.
  double bursts = 0;
};

struct Outcome {
  size_t plan = 0;
  int rounds = 0;
  int changes = 0;  // plans that were taken
  std::vector<size_t> turns;
};

// Threads: one. Owns: the state of the noise.
class Noise {
 public:
  Noise(const World& world, uint64_t seed)
      : world_(world),
        random_(seed),
        noise_(0, world.noise),
        is_outlier_(world.outliers),
        begins_(world.bursts) {}

  // By what the next step takes longer than its plan says.
  double Next() {
    double factor = std::exp(noise_(random_)) * std::pow(1 + world_.drift, steps_++);
    if (is_outlier_(random_)) factor *= 5;
    is_in_burst_ = is_in_burst_ ? !ends_(random_) : begins_(random_);
    return is_in_burst_ ? factor * 1.5 : factor;
  }

 private:
  const World& world_;
  std::mt19937_64 random_;
  std::normal_distribution<double> noise_;
  std::bernoulli_distribution is_outlier_;
  std::bernoulli_distribution begins_;
  std::bernoulli_distribution ends_{1.0 / 8};
  bool is_in_burst_ = false;
  int steps_ = 0;
};

Outcome Tune(const World& world, size_t current, uint64_t seed, PlanTunerOptions options = {}) {
  Noise noise(world, seed);
  PlanTuner tuner(world.step_s.size(), current, options);
  Outcome outcome;
  PlanTuner::Turn turn = tuner.turn();
  while (turn.rounds > 0) {
    outcome.turns.push_back(turn.plan);
    std::vector<double> steps;
    for (int i = 0; i < turn.rounds; ++i) {
      const double changes = i < options.skipped ? 3 : 1;
      steps.push_back(world.step_s[turn.plan] * noise.Next() * changes);
    }
    outcome.rounds += turn.rounds;
    turn = tuner.Next(steps, world.predicted_s);
    for (const PlanVerdict& verdict : tuner.verdicts()) outcome.changes += verdict.is_taken;
  }
  outcome.plan = turn.plan;
  return outcome;
}

// Thirteen plans whose best one is `best`; others are the slower, the farther they are from it.
std::vector<double> Valley(size_t best, double slope) {
  std::vector<double> steps;
  for (size_t i = 0; i < 13; ++i) {
    steps.push_back(0.1 *
                    (1 + slope * std::abs(static_cast<double>(i) - static_cast<double>(best))));
  }
  return steps;
}

TEST(PlanTunerTest, FindsThePlantedBestPlanThroughNoise) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const size_t best = seed % 13;
    const World world{.step_s = Valley(best, 0.1), .predicted_s = Valley(best, 0.3), .noise = 0.02};
    const size_t current = (best + 6) % 13;
    const Outcome outcome = Tune(world, current, seed);
    EXPECT_EQ(outcome.plan, best) << "seed " << seed;
    EXPECT_LE(outcome.rounds, 58) << "seed " << seed;
  }
}

TEST(PlanTunerTest, TakesANeighborOfWhatThePredictionsMissed) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    // They are off by one, and the two that are tried beside it are far from both.
    World world{.step_s = Valley(5, 0.15), .predicted_s = Valley(6, 0.3), .noise = 0.005};
    const Outcome outcome = Tune(world, 12, seed);
    EXPECT_EQ(outcome.plan, 5u) << "seed " << seed;
  }
}

// Threads: a value. Owns: nothing.
struct Machine {
  World world;          // without its plans
  int most_missed = 0;  // tunings of a hundred in which a plan that saves a tenth is not found
};

// With noise as two ranks on two cores have it, outliers and drift, a tenth is more than what steps
// differ by. Times in which every step is longer last as long as a turn, so that the plan which is
// the fastest may have its one turn in such a time: no rule finds it then.
std::vector<Machine> SharedMachines() {
  return {{{.noise = 0.04}, 10},
          {{.noise = 0.03, .outliers = 0.05}, 10},
          {{.noise = 0.03, .drift = 0.002, .outliers = 0.02}, 10},
          {{.noise = 0.03, .bursts = 0.015}, 30},
          {{.noise = 0.05, .outliers = 0.03, .bursts = 0.01}, 40},
          {{.noise = 0.03, .bursts = 0.03}, 45}};
}

std::string Describe(const World& world) {
  return absl::StrCat("noise ", world.noise, ", drift ", world.drift, ", outliers ", world.outliers,
                      ", bursts ", world.bursts);
}

// In two of a hundred tunings at most.
TEST(PlanTunerTest, ChanceAloneHardlyEverChangesAnything) {
  for (const Machine& machine : SharedMachines()) {
    World world = machine.world;
    world.step_s = std::vector<double>(13, 0.1);
    world.predicted_s = Valley(3, 0.1);
    int changes = 0;
    for (uint64_t seed = 0; seed < kTunings; ++seed) changes += Tune(world, 8, seed).changes;
    EXPECT_LE(changes, kTunings * 2 / 100) << Describe(world);
  }
}

TEST(PlanTunerTest, APlanThatSavesATenthIsMissedAsOftenAsTheNoiseHidesIt) {
  for (const Machine& machine : SharedMachines()) {
    World world = machine.world;
    world.step_s = std::vector<double>(13, 0.1);
    world.step_s[4] = 0.09;
    world.predicted_s = Valley(4, 0.1);
    int missed = 0;
    for (uint64_t seed = 0; seed < kTunings; ++seed) missed += Tune(world, 8, seed).plan != 4;
    EXPECT_LE(missed, kTunings * machine.most_missed / 100) << Describe(world);
  }
}

// With the noise of two ranks on two cores.
TEST(PlanTunerTest, NoPlanThatIsThreeHundredthsSlowerIsTaken) {
  int taken = 0;
  for (uint64_t seed = 0; seed < kTunings; ++seed) {
    World world{.step_s = std::vector<double>(13, 0.103), .noise = 0.04};
    world.step_s[8] = 0.1;
    world.predicted_s = Valley(3, 0.1);
    taken += Tune(world, 8, seed).changes;
  }
  EXPECT_LE(taken, kTunings / 500) << "of " << kTunings;
}

TEST(PlanTunerTest, ChangesNothingWhereAllAreEqual) {
  const World world{.step_s = std::vector<double>(13, 0.1), .predicted_s = Valley(3, 0.1)};
  EXPECT_EQ(Tune(world, 8, 1).changes, 0);
}

TEST(PlanTunerTest, NeverTakesAPlanThatIsSlower) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const World world{.step_s = Valley(6, 0.1), .predicted_s = Valley(0, 0.1), .noise = 0.1};
    const Outcome outcome = Tune(world, 7, seed);
    EXPECT_LE(world.step_s[outcome.plan], world.step_s[7]) << "seed " << seed;
  }
}

TEST(PlanTunerTest, StopsWithinItsRounds) {
  for (int most : {0, 2, 10, 34, 45, 58}) {
    const World world{.step_s = Valley(6, 0.1), .predicted_s = Valley(6, 0.1)};
    const Outcome outcome = Tune(world, 0, 1, {.most = most});
    EXPECT_LE(outcome.rounds, std::max(most, 2)) << most;
  }
}

TEST(PlanTunerTest, WhatIsClearlySlowerCostsNoMoreThanATurnEach) {
  World world{.step_s = std::vector<double>(13, 0.3), .predicted_s = Valley(3, 0.1)};
  world.step_s[8] = 0.1;
  EXPECT_THAT(Tune(world, 8, 1).turns, ElementsAre(8, 8, 3, 1, 5, 7, 9));
}

TEST(PlanTunerTest, ThereIsNothingToTuneWithOnePlan) {
  const PlanTuner tuner(1, 0, {});
  EXPECT_EQ(tuner.turn().rounds, 0);
  EXPECT_EQ(tuner.turn().plan, 0u);
}

TEST(PlanTunerTest, EveryOtherPairOfTheLastTwoBeginsWithTheChallenger) {
  const World world{.step_s = {1, 0.9, 1}, .predicted_s = {1, 2, 3}};
  const Outcome outcome = Tune(world, 2, 1, {.challengers = 2, .pairs = 3});
  // The recording, a turn each; then the last two.
  EXPECT_THAT(outcome.turns, ElementsAre(2, 2, 0, 1, 1, 2, 2, 1, 1, 2));
  EXPECT_EQ(outcome.plan, 1u);
}

TEST(PlanTunerTest, TwoPlansAreComparedAtOnce) {
  const World world{.step_s = {1, 0.9}, .predicted_s = {1, 2}};
  EXPECT_THAT(Tune(world, 0, 1, {.pairs = 4}).turns, ElementsAre(0, 0, 1, 1, 0, 0, 1, 1, 0));
}

TEST(PlanTunerTest, AGainInOnePairAloneIsNone) {
  // A machine that was busy for the length of a turn, or two.
  PlanTuner tuner(2, 0, {.pairs = 4});
  PlanTuner::Turn turn = tuner.Next({{1.0, 1.0}}, {{1.0, 1.0}});
  for (int i = 0; turn.rounds > 0; ++i) {
    const bool is_busy = turn.plan == 0 && i < 4;
    const std::vector<double> steps(4, is_busy ? 2.0 : turn.plan == 0 ? 1.0 : 1.01);
    turn = tuner.Next(steps, {});
  }
  EXPECT_EQ(turn.plan, 0u);
}

TEST(PlanTunerTest, VerdictsTellTheFiguresBehindThem) {
  PlanTuner tuner(2, 0, {.pairs = 3});
  PlanTuner::Turn turn = tuner.Next({{3.0, 1.0}}, {{1.0, 0.5}});
  while (turn.rounds > 0) {
    EXPECT_THAT(tuner.verdicts(), IsEmpty());
    const double step_s = turn.plan == 0 ? 1.0 : 0.5;
    turn = tuner.Next({{3.0, step_s, step_s, step_s}}, {});
  }
  ASSERT_EQ(tuner.verdicts().size(), 1u);
  const PlanVerdict& verdict = tuner.verdicts().front();
  EXPECT_TRUE(verdict.is_final);
  EXPECT_TRUE(verdict.is_taken);
  EXPECT_EQ(verdict.current_s, 1.0);
  EXPECT_EQ(verdict.challenger_s, 0.5);
  EXPECT_EQ(verdict.gain_s, 0.5);
  EXPECT_EQ(verdict.noise_s, 0.0);
  EXPECT_EQ(turn.plan, 1u);
}

TEST(PlanTunerTest, TriesAreToldBeforeTheLastTwoAreCompared) {
  PlanTuner tuner(3, 0, {});
  PlanTuner::Turn turn = tuner.Next({{1.0, 1.0}}, {{1.0, 1.0, 1.0}});
  while (tuner.verdicts().empty()) {
    const double step_s = turn.plan == 2 ? 0.5 : 1.0;
    turn = tuner.Next({{3.0, step_s, step_s, step_s}}, {});
  }
  ASSERT_EQ(tuner.verdicts().size(), 2u);
  for (const PlanVerdict& verdict : tuner.verdicts()) {
    EXPECT_FALSE(verdict.is_final);
    EXPECT_FALSE(verdict.is_taken);
    EXPECT_EQ(verdict.current_s, 1.0);
    EXPECT_EQ(verdict.challenger_s, verdict.challenger == 2 ? 0.5 : 1.0);
  }
}

}  // namespace
}  // namespace pelton
