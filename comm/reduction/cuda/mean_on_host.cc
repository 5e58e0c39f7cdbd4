#include "comm/reduction/cuda/mean_on_host.h"

#include <cstddef>
#include <vector>

#include "comm/reduction/combinable.h"
#include "comm/reduction/linear_combination.h"
#include "core/memory/dtype.h"

namespace pelton {
namespace {

constexpr uint64_t kPackBytes = 16;

}  // namespace

bool IsValid(const PeltonMean& mean) {
  const bool is_dtype = mean.dtype >= 0 && mean.dtype < kDTypeCount;
  return is_dtype && IsCombinable(static_cast<DType>(mean.dtype)) && mean.source_count >= 0 &&
         mean.stride_bytes % kPackBytes == 0;
}

void RunOnHost(const PeltonMean& mean) {
  if (mean.count == 0) return;
  std::vector<const std::byte*> tensors = {static_cast<const std::byte*>(mean.own)};
  std::vector<double> factors = {mean.factors[0]};
  for (int32_t s = 0; s < mean.source_count; ++s) {
    tensors.push_back(static_cast<const std::byte*>(mean.theirs) +
                      static_cast<uint64_t>(s) * mean.stride_bytes);
    const double arrived = mean.arrived == nullptr ? 1 : mean.arrived[s];
    factors.push_back(mean.factors[s + 1] * arrived);
  }
  std::vector<Term> terms;
  WeightedMean(tensors, factors,
               {static_cast<std::byte*>(mean.target), static_cast<DType>(mean.dtype)}, mean.count,
               terms);
}

}  // namespace pelton
