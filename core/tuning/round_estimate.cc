#include "core/tuning/round_estimate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/ids.h"
#include "core/memory/dtype.h"

namespace pelton {
namespace {

constexpr double kNanosPerSecond = 1e9;
// Slopes between sizes closer than that say more about the noise.
constexpr double kLeastRatio = 1.5;
// Pairs are quadratic in the samples; so many of them are as good as all.
constexpr size_t kMostSamples = 128;

bool IsFilledAlike(const Plan& one, const Plan& other) {
  if (one.buckets().size() != other.buckets().size()) return false;
  for (size_t i = 0; i < one.buckets().size(); ++i) {
    if (one.buckets()[i].slots != other.buckets()[i].slots) return false;
  }
  return true;
}

}  // namespace

double MedianOf(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

uint64_t SizeOf(const Plan& plan, const BucketLayout& bucket) {
  uint64_t size_bytes = bucket.flat_count * SizeOf(bucket.dtype);
  for (SlotId slot : bucket.standalone) size_bytes += plan.slot(slot).size_bytes;
  return size_bytes;
}

std::vector<BucketSample> SamplesOf(const Plan& plan, const BucketTimes& times) {
  std::vector<BucketSample> samples;
  int64_t last_done_ns = 0;
  for (const BucketLayout& bucket : plan.buckets()) {
    const int64_t ready_ns = times.ready_ns(bucket.id);
    const int64_t done_ns = times.done_ns(bucket.id);
    const int64_t begin_ns = std::max(ready_ns, last_done_ns);
    last_done_ns = std::max(last_done_ns, done_ns);
    if (ready_ns == 0 || done_ns <= begin_ns) continue;
    samples.push_back(
        {SizeOf(plan, bucket), static_cast<double>(done_ns - begin_ns) / kNanosPerSecond});
  }
  return samples;
}

BucketCost FitBucketCost(absl::Span<const BucketSample> samples) {
  const size_t stride = samples.size() / kMostSamples + 1;
  std::vector<double> slopes;
  for (size_t i = 0; i < samples.size(); i += stride) {
    for (size_t j = 0; j < i; j += stride) {
      const auto [small, large] = std::minmax(
          samples[i], samples[j],
          [](const BucketSample& a, const BucketSample& b) { return a.size_bytes < b.size_bytes; });
      const auto least = static_cast<double>(small.size_bytes);
      const auto most = static_cast<double>(large.size_bytes);
      if (most < kLeastRatio * least) continue;
      slopes.push_back((large.seconds - small.seconds) / (most - least));
    }
  }
  BucketCost cost;
  std::vector<double> rests;
  if (slopes.empty()) {
    cost.is_split_assumed = true;
    for (const BucketSample& sample : samples) {
      const auto size = static_cast<double>(std::max<uint64_t>(sample.size_bytes, 1));
      rests.push_back(std::max(0.0, sample.seconds - kUnknownLatency) / size);
    }
    cost.seconds_per_byte = MedianOf(rests);
    rests.clear();
  } else {
    cost.seconds_per_byte = std::max(0.0, MedianOf(slopes));
  }
  for (const BucketSample& sample : samples)
    rests.push_back(sample.seconds - cost.Of(sample.size_bytes));
  cost.latency_s = std::max(0.0, MedianOf(rests));
  return cost;
}

double EndOfRound(const Plan& plan, absl::Span<const double> ready_s, const BucketCost& cost) {
  double end_s = 0;
  for (const BucketLayout& bucket : plan.buckets()) {
    double begin_s = end_s;
    for (SlotId slot : bucket.slots) {
      begin_s = std::max(begin_s, ready_s[static_cast<size_t>(slot.value())]);
    }
    end_s = begin_s + cost.Of(SizeOf(plan, bucket));
  }
  return end_s;
}

CandidatePlans CandidatesFor(const Plan& plan, absl::Span<const SlotId> order,
                             uint64_t smallest_bytes, uint64_t largest_bytes) {
  CandidatePlans candidates;
  std::vector<uint64_t> sizes = {plan.options().bucket_size_bytes};
  for (uint64_t size = smallest_bytes; size <= largest_bytes; size *= 2) sizes.push_back(size);
  const uint64_t current_bytes = sizes.front();
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  for (uint64_t size : sizes) {
    absl::StatusOr<Plan> candidate = plan.Resized(order, size);
    if (!candidate.ok()) continue;  // its padding would take too much memory
    const bool is_current = size == current_bytes;
    const bool is_same =
        !candidates.plans.empty() && IsFilledAlike(candidates.plans.back(), *candidate);
    if (is_same && is_current) candidates.plans.pop_back();
    if (!is_same || is_current) candidates.plans.push_back(*std::move(candidate));
    if (is_current) candidates.current = candidates.plans.size() - 1;
  }
  return candidates;
}

}  // namespace pelton
