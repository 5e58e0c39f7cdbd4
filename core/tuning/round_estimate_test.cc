#include "core/tuning/round_estimate.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;

Plan PlanOf(const std::vector<uint64_t>& counts, uint64_t bucket_size_bytes) {
  std::vector<TensorSpec> tensors;
  for (uint64_t count : counts) {
    tensors.push_back({.name = absl::StrCat("t", tensors.size()), .count = count});
  }
  PlanOptions options;
  options.world_size = WorldSize(2);
  options.bucket_size_bytes = bucket_size_bytes;
  return *Plan::Build(std::move(tensors), std::move(options));
}

std::vector<SlotId> Backwards(size_t count) {
  std::vector<SlotId> order;
  for (size_t i = count; i-- > 0;) order.emplace_back(static_cast<int32_t>(i));
  return order;
}

// A wire that is looked at every microsecond.
double SimulatedEnd(const Plan& plan, const std::vector<double>& ready_s, const BucketCost& cost) {
  constexpr double kTick = 1e-6;
  size_t next = 0;
  double free_at_s = 0;
  for (double now_s = 0; next < plan.buckets().size(); now_s += kTick) {
    const BucketLayout& bucket = plan.buckets()[next];
    const bool is_ready = std::all_of(bucket.slots.begin(), bucket.slots.end(), [&](SlotId slot) {
      return ready_s[static_cast<size_t>(slot.value())] <= now_s;
    });
    if (!is_ready || now_s < free_at_s) continue;
    free_at_s = now_s + cost.Of(SizeOf(plan, bucket));
    ++next;
  }
  return free_at_s;
}

TEST(RoundEstimateTest, TheEndOfARoundIsThatOfAPlainSimulation) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<uint64_t> count(1, 3000);
    std::uniform_real_distribution<double> gap(0, 100e-6);
    std::vector<uint64_t> counts(40);
    for (uint64_t& each : counts) each = count(random);
    std::vector<double> ready_s(counts.size());
    double now_s = 0;
    for (size_t i = counts.size(); i-- > 0;) ready_s[i] = now_s += gap(random);
    const BucketCost cost{.latency_s = 30e-6, .seconds_per_byte = 5e-9};
    for (uint64_t size : {1u, 5000u, 20000u, 1000000u}) {
      const Plan plan = PlanOf(counts, size);
      EXPECT_NEAR(EndOfRound(plan, ready_s, cost), SimulatedEnd(plan, ready_s, cost),
                  1.1e-6 * static_cast<double>(plan.buckets().size()))
          << "seed " << seed << ", buckets of " << size;
    }
  }
}

TEST(RoundEstimateTest, FitsLatencyAndBandwidthThroughOutliers) {
  std::vector<BucketSample> samples;
  for (uint64_t i = 1; i <= 20; ++i) {
    const uint64_t size = i * 100000;
    samples.push_back({size, 40e-6 + static_cast<double>(size) * 1e-9 * (i % 7 == 0 ? 30 : 1)});
  }
  const BucketCost cost = FitBucketCost(samples);
  EXPECT_NEAR(cost.latency_s, 40e-6, 4e-6);
  EXPECT_NEAR(cost.seconds_per_byte, 1e-9, 1e-10);
  EXPECT_FALSE(cost.is_split_assumed);
}

TEST(RoundEstimateTest, OneSizeAloneGivesABoundedLatency) {
  const std::vector<BucketSample> samples(3, BucketSample{1000000, 1050e-6});
  const BucketCost cost = FitBucketCost(samples);
  EXPECT_NEAR(cost.latency_s, kUnknownLatency, 1e-9);
  EXPECT_TRUE(cost.is_split_assumed);
  EXPECT_NEAR(cost.Of(1000000), 1050e-6, 1e-9);
  const std::vector<BucketSample> quick(3, BucketSample{1000, 10e-6});
  EXPECT_NEAR(FitBucketCost(quick).latency_s, 10e-6, 1e-9);
}

TEST(RoundEstimateTest, LargerBucketsThatWereQuickerHaveNoNegativeCost) {
  const BucketCost cost = FitBucketCost({{{1000, 2e-3}, {100000, 1e-3}}});
  EXPECT_EQ(cost.seconds_per_byte, 0);
  EXPECT_GT(cost.latency_s, 0);
  EXPECT_EQ(FitBucketCost({}).Of(1000), 0);
}

TEST(RoundEstimateTest, ABucketsTimeBeginsWhenTheOneBeforeItIsThrough) {
  const Plan plan = PlanOf({10, 10, 10}, 1);
  BucketTimes times;
  times.Begin(3);
  const auto at = [](int64_t ms) { return absl::FromUnixMillis(ms); };
  times.Ready(BucketId(0), at(100));
  times.Ready(BucketId(1), at(101));
  times.Ready(BucketId(2), at(200));
  times.Done(BucketId(0), at(110));
  times.Done(BucketId(1), at(115));
  times.Done(BucketId(2), at(203));
  std::vector<double> seconds;
  for (const BucketSample& sample : SamplesOf(plan, times)) seconds.push_back(sample.seconds);
  EXPECT_THAT(seconds, ElementsAre(0.010, 0.005, 0.003));
}

TEST(RoundEstimateTest, TimesOfABucketThatWasNeverReadyAreNoSample) {
  const Plan plan = PlanOf({10}, 1);
  BucketTimes times;
  EXPECT_TRUE(SamplesOf(plan, times).empty());
  times.Begin(1);
  times.Done(BucketId(0), absl::FromUnixSeconds(1));
  EXPECT_TRUE(SamplesOf(plan, times).empty());
}

TEST(RoundEstimateTest, CandidatesFillTheirBucketsInDifferentWays) {
  const Plan plan = PlanOf({300, 300, 300, 300}, 2500);  // two tensors a bucket
  const CandidatePlans candidates = CandidatesFor(plan, Backwards(4), 1024, 16384);
  std::vector<size_t> buckets;
  for (const Plan& candidate : candidates.plans) buckets.push_back(candidate.buckets().size());
  EXPECT_THAT(buckets, ElementsAre(4, 2, 2, 1));
  EXPECT_EQ(candidates.current, 1u);
  EXPECT_EQ(candidates.plans[1].options().bucket_size_bytes, 2500u);
}

TEST(RoundEstimateTest, WhereTheUserHasChosenBucketsThereIsOneCandidate) {
  PlanOptions options;
  options.buckets = {0, 1};
  const Plan plan =
      *Plan::Build({{.name = "a", .count = 1}, {.name = "b", .count = 1}}, std::move(options));
  EXPECT_EQ(CandidatesFor(plan, Backwards(2), 1024, 4096).plans.size(), 1u);
}

TEST(RoundEstimateTest, EndsOfAllCandidatesAreThereWithinAMillisecond) {
  const std::vector<uint64_t> counts(100, 5000);
  const Plan plan = PlanOf(counts, 10 << 20);
  const CandidatePlans candidates = CandidatesFor(plan, Backwards(100), 16 << 10, 64 << 20);
  const std::vector<double> ready_s(100, 0);
  absl::Duration best = absl::InfiniteDuration();
  double sum_s = 0;
  for (int i = 0; i < 50; ++i) {
    const absl::Time start = absl::Now();
    for (const Plan& candidate : candidates.plans) {
      sum_s += EndOfRound(candidate, ready_s, {.latency_s = 1e-5, .seconds_per_byte = 1e-9});
    }
    best = std::min(best, absl::Now() - start);
  }
  EXPECT_GT(sum_s, 0);
  EXPECT_LT(best, absl::Milliseconds(1));
}

}  // namespace
}  // namespace pelton
