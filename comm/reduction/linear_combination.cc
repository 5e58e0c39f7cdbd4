// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduction/linear_combination.cc"
#include "comm/reduction/linear_combination.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm/reduction/reduction.h"
#include "core/base/check.h"
#include "core/base/floating_point.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "comm/reduction/formats-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements that are summed before the next: the buffers stay in a small first-level cache, so that
// the tensors themselves are read and written once.
constexpr size_t kBlockCount = 1024;

// Calls `run` for each vector of `count` elements at `from`, as lanes of the format; the last one
// may have fewer elements, and comes from a buffer of a whole vector.
template <class Format, class Function>
HWY_INLINE void ForEachVector(const std::byte* from, size_t count, Function run) {
  using Element = typename Format::Element;
  const typename Format::D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    run(i, Format::Load(d, reinterpret_cast<const Element*>(from) + i));
  }
  if (i == count) return;
  HWY_ALIGN Element buffer[hn::MaxLanes(d)] = {};
  std::memcpy(buffer, from + i * sizeof(Element), (count - i) * sizeof(Element));
  run(i, Format::Load(d, buffer));
}

// sum[i] = factor * from[i], or sum[i] += it. `sum` has room for whole vectors.
template <class Format>
HWY_INLINE void AddTerm(const std::byte* from, size_t count, typename Format::Lane factor,
                        bool is_first, typename Format::Lane* sum) {
  const typename Format::D d;
  const auto scale = hn::Set(d, factor);
  if (is_first) {
    ForEachVector<Format>(
        from, count, [&](size_t i, auto x) HWY_ATTR { hn::Store(hn::Mul(scale, x), d, sum + i); });
  } else {
    ForEachVector<Format>(from, count, [&](size_t i, auto x) HWY_ATTR {
      hn::Store(hn::Add(hn::Load(d, sum + i), hn::Mul(scale, x)), d, sum + i);
    });
  }
}

template <class Format>
HWY_INLINE void StoreSum(const typename Format::Lane* sum, size_t count, std::byte* to) {
  using Element = typename Format::Element;
  const typename Format::D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Format::Store(d, hn::Load(d, sum + i), reinterpret_cast<Element*>(to) + i);
  }
  if (i == count) return;
  HWY_ALIGN Element buffer[hn::MaxLanes(d)];
  Format::Store(d, hn::Load(d, sum + i), buffer);
  std::memcpy(to + i * sizeof(Element), buffer, (count - i) * sizeof(Element));
}

void AddFloatTerm(const std::byte* from, DType dtype, size_t count, float factor, bool is_first,
                  float* sum) {
  switch (dtype) {
    case DType::kFloat16:
      return AddTerm<Float16>(from, count, factor, is_first, sum);
    case DType::kBFloat16:
      return AddTerm<BFloat16>(from, count, factor, is_first, sum);
    default:
      return AddTerm<Plain<float>>(from, count, factor, is_first, sum);
  }
}

void StoreFloats(const float* sum, size_t count, CombinationTarget target) {
  switch (target.dtype) {
    case DType::kFloat16:
      return StoreSum<Float16>(sum, count, target.data);
    case DType::kBFloat16:
      return StoreSum<BFloat16>(sum, count, target.data);
    default:
      return StoreSum<Plain<float>>(sum, count, target.data);
  }
}

// Where the target is a term, all of a block is read before any of it is written.
void CombineFloats(absl::Span<const Term> terms, CombinationTarget target, uint64_t count) {
  HWY_ALIGN float sum[kBlockCount];
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    for (size_t t = 0; t < terms.size(); ++t) {
      AddFloatTerm(terms[t].data + begin * SizeOf(terms[t].dtype), terms[t].dtype, length,
                   static_cast<float>(terms[t].factor), t == 0, sum);
    }
    StoreFloats(sum, length, {target.data + begin * SizeOf(target.dtype), target.dtype});
  }
}

// Through float32, whose values a float64 holds.
void AddDoubleTerm(const Term& term, uint64_t begin, size_t length, bool is_first, double* sum) {
  const std::byte* const from = term.data + begin * SizeOf(term.dtype);
  if (term.dtype == DType::kFloat64) {
    return AddTerm<Plain<double>>(from, length, term.factor, is_first, sum);
  }
  HWY_ALIGN float narrow[kBlockCount];
  AddFloatTerm(from, term.dtype, length, 1.0F, true, narrow);
  if (is_first) {
    for (size_t i = 0; i < length; ++i) sum[i] = term.factor * static_cast<double>(narrow[i]);
  } else {
    for (size_t i = 0; i < length; ++i) sum[i] += term.factor * static_cast<double>(narrow[i]);
  }
}

void CombineDoubles(absl::Span<const Term> terms, CombinationTarget target, uint64_t count) {
  HWY_ALIGN double sum[kBlockCount];
  HWY_ALIGN float narrow[kBlockCount];
  for (uint64_t begin = 0; begin < count; begin += kBlockCount) {
    const auto length = static_cast<size_t>(std::min<uint64_t>(kBlockCount, count - begin));
    for (size_t t = 0; t < terms.size(); ++t) AddDoubleTerm(terms[t], begin, length, t == 0, sum);
    std::byte* const to = target.data + begin * SizeOf(target.dtype);
    if (target.dtype == DType::kFloat64) {
      std::memcpy(to, sum, length * sizeof(double));
    } else {
      for (size_t i = 0; i < length; ++i) narrow[i] = static_cast<float>(sum[i]);
      StoreFloats(narrow, length, {to, target.dtype});
    }
  }
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {
namespace {

HWY_EXPORT(CombineFloats);
HWY_EXPORT(CombineDoubles);

bool AreEqualShares(absl::Span<const double> factors) {
  const auto n = static_cast<double>(factors.size());
  return std::all_of(factors.begin(), factors.end(),
                     [n](double factor) { return std::abs(factor * n - 1) < kShareRounding; });
}

}  // namespace

void LinearCombination(absl::Span<const Term> terms, CombinationTarget target, uint64_t count) {
  PELTON_CHECK(!terms.empty());
  PELTON_CHECK(IsCombinable(target.dtype)) << target.dtype;
  bool is_wide = target.dtype == DType::kFloat64;
  for (const Term& term : terms) {
    PELTON_CHECK(IsCombinable(term.dtype)) << term.dtype;
    is_wide |= term.dtype == DType::kFloat64;
  }
  const DefaultFloatingPoint scope;
  if (is_wide) {
    HWY_DYNAMIC_DISPATCH(CombineDoubles)(terms, target, count);
  } else {
    HWY_DYNAMIC_DISPATCH(CombineFloats)(terms, target, count);
  }
}

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

double NumberAt(const std::byte* data, DType dtype) {
  if (dtype == DType::kFloat64) return *reinterpret_cast<const double*>(data);
  return *reinterpret_cast<const float*>(data);
}

void FillNumbers(CombinationTarget target, double value, uint64_t count) {
  if (target.dtype == DType::kFloat64) {
    std::fill_n(reinterpret_cast<double*>(target.data), count, value);
  } else {
    std::fill_n(reinterpret_cast<float*>(target.data), count, static_cast<float>(value));
  }
}

}  // namespace pelton
#endif  // HWY_ONCE
