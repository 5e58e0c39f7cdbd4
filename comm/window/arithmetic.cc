#include "comm/window/arithmetic.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/reduction/reduction.h"

namespace pelton {
namespace {

bool IsWhole(DType dtype) { return dtype == DType::kInt32 || dtype == DType::kInt64; }

// In the unsigned type, which wraps by definition. Memory need not be aligned.
template <typename Unsigned>
void WholeSum(absl::Span<const Term> terms, std::byte* target, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    Unsigned sum = 0;
    for (const Term& term : terms) {
      Unsigned element;
      std::memcpy(&element, term.data + i * sizeof(element), sizeof(element));
      sum += element * static_cast<Unsigned>(static_cast<int64_t>(term.factor));
    }
    std::memcpy(target + i * sizeof(sum), &sum, sizeof(sum));
  }
}

// The C library streams large copies past the caches. What fits into the last one is soon read
// again by somebody, so it is copied in pieces that are not large.
void Copy(const std::byte* source, std::byte* target, uint64_t bytes) {
  static const int64_t cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  constexpr uint64_t kPieceBytes = uint64_t{256} << 10;
  const bool fits = static_cast<int64_t>(2 * bytes) <= cache_bytes;
  const uint64_t piece = fits ? kPieceBytes : bytes;
  for (uint64_t done = 0; done < bytes; done += piece) {
    std::memcpy(target + done, source + done, std::min(piece, bytes - done));
  }
}

}  // namespace

absl::Status CheckWindowType(DType dtype) {
  if (IsCombinable(dtype) || IsWhole(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor: a window holds float16, bfloat16, float32, float64, int32 or int64, not ",
      NameOf(dtype)));
}

absl::Status CheckWindowWeight(DType dtype, double weight) {
  if (!std::isfinite(weight)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: ", weight, " is not finite"));
  }
  constexpr double kMost = 9007199254740992.0;  // 2^53: all whole numbers up to it are doubles
  if (IsWhole(dtype) && (weight != std::trunc(weight) || std::abs(weight) > kMost)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: ", weight, " for a window of ",
                                                   NameOf(dtype),
                                                   "; give whole weights, or use float64"));
  }
  return absl::OkStatus();
}

void WeightedSum(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype) {
  if (count == 0) return;
  if (dtype == DType::kInt32) return WholeSum<uint32_t>(terms, target, count);
  if (dtype == DType::kInt64) return WholeSum<uint64_t>(terms, target, count);
  if (terms.size() == 1 && terms[0].factor == 1) {
    if (terms[0].data != target) Copy(terms[0].data, target, count * SizeOf(dtype));
    return;
  }
  LinearCombination(terms, {target, dtype}, count);
}

void MeanOf(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype,
            size_t divisor) {
  if (count == 0) return;
  std::vector<const std::byte*> sources;
  sources.reserve(terms.size());
  for (const Term& term : terms) sources.push_back(term.data);
  ReduceToMean(sources, {&target, 1}, count, dtype, divisor);
}

}  // namespace pelton
