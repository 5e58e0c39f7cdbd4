#include "algorithms/stage/linear_combination.h"

#include <algorithm>
#include <type_traits>

#include "algorithms/codec/convert.h"
#include "core/base/check.h"

namespace pelton {
namespace {

using codec::kBlockCount;

// Threads: one. Owns: the buffers of one block.
template <typename Sum>
class Combiner {
 public:
  // Sums one block.
  void Run(absl::Span<const Term> terms, uint64_t begin, size_t length) {
    for (size_t t = 0; t < terms.size(); ++t) {
      const Sum* const from = ElementsOf(terms[t], begin, length);
      const Sum factor = static_cast<Sum>(terms[t].factor);
      if (t == 0) {
        for (size_t i = 0; i < length; ++i) sum_[i] = factor * from[i];
      } else {
        for (size_t i = 0; i < length; ++i) sum_[i] += factor * from[i];
      }
    }
  }

  void Store(CombinationTarget target, uint64_t begin, size_t length) {
    std::byte* const to = target.data + begin * SizeOf(target.dtype);
    if (target.dtype == kOwn) {
      std::copy_n(sum_, length, reinterpret_cast<Sum*>(to));
    } else {
      std::copy_n(sum_, length, narrow_);
      codec::FloatsTo(narrow_, length, target.dtype, to);
    }
  }

 private:
  static constexpr DType kOwn = std::is_same_v<Sum, double> ? DType::kFloat64 : DType::kFloat32;

  const Sum* ElementsOf(const Term& term, uint64_t begin, size_t length) {
    const std::byte* const from = term.data + begin * SizeOf(term.dtype);
    if (term.dtype == kOwn) return reinterpret_cast<const Sum*>(from);
    if constexpr (std::is_same_v<Sum, float>) {
      codec::FloatsFrom(from, length, term.dtype, wide_);
    } else {
      codec::FloatsFrom(from, length, term.dtype, narrow_);
      std::copy_n(narrow_, length, wide_);
    }
    return wide_;
  }

  alignas(64) Sum sum_[kBlockCount];
  alignas(64) Sum wide_[kBlockCount];
  alignas(64) float narrow_[kBlockCount];
};

template <typename Sum>
void Combine(absl::Span<const Term> terms, CombinationTarget target, uint64_t count) {
  Combiner<Sum> combiner;
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    combiner.Run(terms, begin, length);
    combiner.Store(target, begin, length);
  }
}

}  // namespace

void LinearCombination(absl::Span<const Term> terms, CombinationTarget target, uint64_t count) {
  bool is_wide = target.dtype == DType::kFloat64;
  PELTON_CHECK(codec::IsConvertible(target.dtype)) << target.dtype;
  for (const Term& term : terms) {
    PELTON_CHECK(codec::IsConvertible(term.dtype)) << term.dtype;
    is_wide |= term.dtype == DType::kFloat64;
  }
  is_wide ? Combine<double>(terms, target, count) : Combine<float>(terms, target, count);
}

}  // namespace pelton
