#include "comm/reduction/weighted_mean.h"

#include <algorithm>
#include <cmath>

#include "comm/reduction/combinable.h"
#include "comm/reduction/reduction.h"

namespace pelton {
namespace {

bool AreEqualShares(absl::Span<const double> factors) {
  const auto n = static_cast<double>(factors.size());
  return std::all_of(factors.begin(), factors.end(),
                     [n](double factor) { return std::abs(factor * n - 1) < kShareRounding; });
}

}  // namespace

void WeightedMean(absl::Span<const std::byte* const> tensors, absl::Span<const double> factors,
                  CombinationTarget target, uint64_t count, std::vector<Term>& terms) {
  if (AreEqualShares(factors)) {
    return ReduceToMean(tensors, {&target.data, 1}, count, target.dtype, factors.size());
  }
  terms.clear();
  for (size_t i = 0; i < factors.size(); ++i) {
    terms.push_back({tensors[i], factors[i], target.dtype});
  }
  LinearCombination(terms, target, count);
}

}  // namespace pelton
