// The tuner among planted plans: steps are a plan's time and noise from a seed.
#include "core/tuning/plan_tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kSeeds = 200;

// What training looks like to the tuner.
struct World {
  std::vector<double> step_s;       // by plan
  std::vector<double> predicted_s;  // by plan
  double noise = 0;                 // standard deviation, as a share of the step
  double drift = 0;                 // by which each step is longer than the one before, as a share
  double outliers = 0;              // share of the steps that take five times as long
};

struct Outcome {
  size_t plan = 0;
  int rounds = 0;
  int changes = 0;  // plans that were taken
  std::vector<size_t> turns;
};

Outcome Tune(const World& world, size_t current, uint64_t seed, PlanTunerOptions options = {}) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(1, world.noise);
  std::bernoulli_distribution is_outlier(world.outliers);
  PlanTuner tuner(world.step_s.size(), current, options);
  Outcome outcome;
  PlanTuner::Turn turn = tuner.turn();
  while (turn.rounds > 0) {
    outcome.turns.push_back(turn.plan);
    std::vector<double> steps;
    for (int i = 0; i < turn.rounds; ++i) {
      double step = world.step_s[turn.plan] * std::max(0.5, noise(random));
      step *= std::pow(1 + world.drift, outcome.rounds++);
      if (i == 0) step *= 3;  // plans change
      steps.push_back(is_outlier(random) ? step * 5 : step);
    }
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

TEST(PlanTunerTest, ChangesNothingWhereAllAreEqual) {
  int changes = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (double noise : {0.0, 0.01, 0.1, 0.3}) {
      const World world{
          .step_s = std::vector<double>(13, 0.1), .predicted_s = Valley(3, 0.1), .noise = noise};
      const int taken = Tune(world, 8, seed).changes;
      EXPECT_TRUE(noise > 0 || taken == 0) << "seed " << seed;
      changes += taken;
    }
  }
  EXPECT_LE(changes, kSeeds * 3 / 100) << "of " << kSeeds * 3;
}

TEST(PlanTunerTest, ChangesNothingWhereOutliersAndDriftAreAllThatDiffers) {
  int changes = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const World world{.step_s = std::vector<double>(13, 0.1),
                      .predicted_s = Valley(3, 0.1),
                      .noise = 0.02,
                      .drift = 0.005,
                      .outliers = 0.05};
    changes += Tune(world, 8, seed).changes;
  }
  EXPECT_LE(changes, kSeeds / 100) << "of " << kSeeds;
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

TEST(PlanTunerTest, ThereIsNothingToTuneWithOnePlan) {
  const PlanTuner tuner(1, 0, {});
  EXPECT_EQ(tuner.turn().rounds, 0);
  EXPECT_EQ(tuner.turn().plan, 0u);
}

TEST(PlanTunerTest, CyclesBeginWithAnotherPlanEachTime) {
  const World world{.step_s = {1, 1, 1}, .predicted_s = {1, 2, 3}};
  const Outcome outcome = Tune(world, 1, 1, {.challengers = 2, .cycles = 3});
  // The recording; then 1, 0, 2 in three orders.
  EXPECT_THAT(outcome.turns, ElementsAre(1, 1, 0, 2, 0, 2, 1, 2, 1, 0));
}

TEST(PlanTunerTest, VerdictsTellTheFiguresBehindThem) {
  PlanTuner tuner(2, 0, {.cycles = 1, .neighbor_cycles = 1});
  tuner.Next({{3.0, 1.0}}, {{1.0, 0.5}});
  EXPECT_THAT(tuner.verdicts(), IsEmpty());
  tuner.Next({{3.0, 1.0, 1.0, 1.0}}, {});
  const PlanTuner::Turn turn = tuner.Next({{3.0, 0.5, 0.5, 0.5}}, {});
  ASSERT_EQ(tuner.verdicts().size(), 1u);
  const PlanVerdict& verdict = tuner.verdicts().front();
  EXPECT_TRUE(verdict.is_taken);
  EXPECT_EQ(verdict.current_s, 1.0);
  EXPECT_EQ(verdict.challenger_s, 0.5);
  EXPECT_EQ(verdict.noise_s, 0.0);
  EXPECT_EQ(turn.plan, 1u);
  EXPECT_EQ(turn.rounds, 0);
}

}  // namespace
}  // namespace pelton
