// Compiled once per instruction set (Highway's foreach_target); the best one is chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduction/reduction.cc"
#include "comm/reduction/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/base/floating_point.h"
#include "core/base/instruction_sets.h"
#include "hwy/foreach_target.h"  // must come before highway.h
//
#include "comm/reduction/formats-inl.h"
#include "hwy/highway.h"

#ifndef PELTON_COMM_REDUCTION_ARGUMENTS_
#define PELTON_COMM_REDUCTION_ARGUMENTS_
namespace pelton {

// What a kernel works on. Threads: a value. Owns: nothing.
struct ReductionArguments {
  const std::byte* const* sources;
  size_t source_count;
  std::byte* const* targets;
  size_t target_count;
  size_t count;
  DType dtype;
  ReduceOp op;
  size_t divisor;  // of AVG
};

}  // namespace pelton
#endif  // PELTON_COMM_REDUCTION_ARGUMENTS_

HWY_BEFORE_NAMESPACE();
namespace pelton::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct VectorSum {
  template <class V>
  static HWY_INLINE V Combine(V a, V x) {
    return hn::Add(a, x);
  }
};
struct VectorProduct {
  template <class V>
  static HWY_INLINE V Combine(V a, V x) {
    return hn::Mul(a, x);
  }
};
struct VectorMin {
  template <class V>
  static HWY_INLINE V Combine(V a, V x) {
    return hn::IfThenElse(hn::Or(hn::Lt(x, a), hn::IsNaN(x)), x, a);
  }
};
struct VectorMax {
  template <class V>
  static HWY_INLINE V Combine(V a, V x) {
    return hn::IfThenElse(hn::Or(hn::Gt(x, a), hn::IsNaN(x)), x, a);
  }
};

// What becomes of a sum. A division by a power of two is a multiplication with the same bits, and
// takes a fraction of the time.
enum class Ending { kNone, kDivide, kMultiply };

// The vector at element `i` of all sources, reduced. `last`: the divisor, or what it is multiplied
// by instead.
template <class Format, class Op>
HWY_INLINE hn::Vec<typename Format::D> ReduceVector(const ReductionArguments& a, size_t i,
                                                    typename Format::Lane last, Ending ending) {
  using Element = typename Format::Element;
  const typename Format::D d;
  auto sum = Format::Load(d, reinterpret_cast<const Element*>(a.sources[0]) + i);
  for (size_t s = 1; s < a.source_count; ++s) {
    const auto x = Format::Load(d, reinterpret_cast<const Element*>(a.sources[s]) + i);
    sum = Op::Combine(sum, x);
  }
  if (ending == Ending::kMultiply) return hn::Mul(sum, hn::Set(d, last));
  return ending == Ending::kDivide ? hn::Div(sum, hn::Set(d, last)) : sum;
}

// Fewer elements than a vector has: through buffers of a whole vector, with the same arithmetic.
template <class Format, class Op>
HWY_INLINE void ReduceTail(const ReductionArguments& a, size_t begin,
                           typename Format::Lane divisor) {
  using Element = typename Format::Element;
  const typename Format::D d;
  const size_t bytes = (a.count - begin) * sizeof(Element);
  HWY_ALIGN Element buffer[hn::MaxLanes(d)] = {};
  const auto load = [&](size_t s) HWY_ATTR {
    std::memcpy(buffer, reinterpret_cast<const Element*>(a.sources[s]) + begin, bytes);
    return Format::Load(d, buffer);
  };
  auto sum = load(0);
  for (size_t s = 1; s < a.source_count; ++s) sum = Op::Combine(sum, load(s));
  if (a.op == ReduceOp::kAvg) sum = hn::Div(sum, hn::Set(d, divisor));
  Format::Store(d, sum, buffer);
  for (size_t t = 0; t < a.target_count; ++t) {
    std::memcpy(reinterpret_cast<Element*>(a.targets[t]) + begin, buffer, bytes);
  }
}

template <class Format, class Op>
HWY_NOINLINE void ReduceFloats(const ReductionArguments& a) {
  using Element = typename Format::Element;
  const typename Format::D d;
  const size_t lanes = hn::Lanes(d);
  const auto divisor = static_cast<typename Format::Lane>(a.divisor);
  const bool is_power = a.divisor > 0 && (a.divisor & (a.divisor - 1)) == 0;
  const Ending ending = a.op != ReduceOp::kAvg ? Ending::kNone
                        : is_power             ? Ending::kMultiply
                                               : Ending::kDivide;
  const auto last = is_power ? 1 / divisor : divisor;
  size_t i = 0;
  for (; i + 4 * lanes <= a.count; i += 4 * lanes) {
    const auto v0 = ReduceVector<Format, Op>(a, i, last, ending);
    const auto v1 = ReduceVector<Format, Op>(a, i + lanes, last, ending);
    const auto v2 = ReduceVector<Format, Op>(a, i + 2 * lanes, last, ending);
    const auto v3 = ReduceVector<Format, Op>(a, i + 3 * lanes, last, ending);
    for (size_t t = 0; t < a.target_count; ++t) {
      Element* const to = reinterpret_cast<Element*>(a.targets[t]) + i;
      Format::Store(d, v0, to);
      Format::Store(d, v1, to + lanes);
      Format::Store(d, v2, to + 2 * lanes);
      Format::Store(d, v3, to + 3 * lanes);
    }
  }
  for (; i + lanes <= a.count; i += lanes) {
    const auto v = ReduceVector<Format, Op>(a, i, last, ending);
    for (size_t t = 0; t < a.target_count; ++t) {
      Format::Store(d, v, reinterpret_cast<Element*>(a.targets[t]) + i);
    }
  }
  if (i < a.count) ReduceTail<Format, Op>(a, i, divisor);
}

// Integers: plain loops over a block of constant length, which the compiler turns into vectors of
// this target. Sums and products are taken unsigned, so that they wrap around.
template <typename T, class Op>
HWY_NOINLINE void ReduceIntegers(const ReductionArguments& a, Op op) {
  constexpr size_t kBlock = 1024 / sizeof(T);
  T sum[kBlock];
  T x[kBlock];
  for (size_t begin = 0; begin < a.count; begin += kBlock) {
    const size_t bytes = std::min(kBlock, a.count - begin) * sizeof(T);
    std::memcpy(sum, reinterpret_cast<const T*>(a.sources[0]) + begin, bytes);
    for (size_t s = 1; s < a.source_count; ++s) {
      std::memcpy(x, reinterpret_cast<const T*>(a.sources[s]) + begin, bytes);
      for (size_t i = 0; i < kBlock; ++i) sum[i] = op(sum[i], x[i]);
    }
    if (a.op == ReduceOp::kAvg) {
      // Through 64 bits: the divisor need not fit into T.
      using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
      const Wide divisor = static_cast<Wide>(a.divisor);
      for (size_t i = 0; i < bytes / sizeof(T); ++i) sum[i] = static_cast<T>(sum[i] / divisor);
    }
    for (size_t t = 0; t < a.target_count; ++t) {
      std::memcpy(reinterpret_cast<T*>(a.targets[t]) + begin, sum, bytes);
    }
  }
}

template <class Format>
void ReduceFloatsBy(const ReductionArguments& a) {
  switch (a.op) {
    case ReduceOp::kProduct:
      return ReduceFloats<Format, VectorProduct>(a);
    case ReduceOp::kMin:
      return ReduceFloats<Format, VectorMin>(a);
    case ReduceOp::kMax:
      return ReduceFloats<Format, VectorMax>(a);
    default:
      return ReduceFloats<Format, VectorSum>(a);
  }
}

template <typename T>
void ReduceIntegersBy(const ReductionArguments& a) {
  using Wrapping =
      std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
  switch (a.op) {
    case ReduceOp::kProduct:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR {
        return static_cast<T>(static_cast<Wrapping>(p) * static_cast<Wrapping>(x));
      });
    case ReduceOp::kMin:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR { return x < p ? x : p; });
    case ReduceOp::kMax:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR { return x > p ? x : p; });
    case ReduceOp::kBitOr:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR { return static_cast<T>(p | x); });
    case ReduceOp::kBitAnd:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR { return static_cast<T>(p & x); });
    case ReduceOp::kBitXor:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR { return static_cast<T>(p ^ x); });
    default:
      return ReduceIntegers<T>(a, [](T p, T x) HWY_ATTR {
        return static_cast<T>(static_cast<Wrapping>(p) + static_cast<Wrapping>(x));
      });
  }
}

// Any byte but 0 is true; results are 0 and 1.
void ReduceBools(ReductionArguments a) {
  const std::byte* const twice[] = {a.sources[0], a.sources[0]};
  if (a.source_count == 1) {
    a.sources = twice;  // one source is made 0 and 1, too
    a.source_count = 2;
    a.op = ReduceOp::kBitOr;
  }
  switch (a.op) {
    case ReduceOp::kBitXor:
      return ReduceIntegers<uint8_t>(
          a, [](uint8_t p, uint8_t x) HWY_ATTR { return uint8_t{(p != 0) != (x != 0)}; });
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return ReduceIntegers<uint8_t>(
          a, [](uint8_t p, uint8_t x) HWY_ATTR { return uint8_t{p != 0 && x != 0}; });
    default:
      return ReduceIntegers<uint8_t>(
          a, [](uint8_t p, uint8_t x) HWY_ATTR { return uint8_t{(p | x) != 0}; });
  }
}

// Too rare to be worth vectors.
template <typename T>
void MultiplyComplex(const ReductionArguments& a) {
  for (size_t i = 0; i < a.count; ++i) {
    T product[2];
    T x[2];
    std::memcpy(product, a.sources[0] + i * sizeof product, sizeof product);
    for (size_t s = 1; s < a.source_count; ++s) {
      std::memcpy(x, a.sources[s] + i * sizeof x, sizeof x);
      const T real = product[0] * x[0] - product[1] * x[1];
      product[1] = product[0] * x[1] + product[1] * x[0];
      product[0] = real;
    }
    for (size_t t = 0; t < a.target_count; ++t) {
      std::memcpy(a.targets[t] + i * sizeof product, product, sizeof product);
    }
  }
}

void ReduceOnTarget(const ReductionArguments& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return ReduceFloatsBy<Plain<float>>(a);
    case DType::kFloat64:
      return ReduceFloatsBy<Plain<double>>(a);
    case DType::kFloat16:
      return ReduceFloatsBy<Float16>(a);
    case DType::kBFloat16:
      return ReduceFloatsBy<BFloat16>(a);
    case DType::kUInt8:
      return ReduceIntegersBy<uint8_t>(a);
    case DType::kInt8:
      return ReduceIntegersBy<int8_t>(a);
    case DType::kInt16:
      return ReduceIntegersBy<int16_t>(a);
    case DType::kInt32:
      return ReduceIntegersBy<int32_t>(a);
    case DType::kInt64:
      return ReduceIntegersBy<int64_t>(a);
    case DType::kBool:
      return ReduceBools(a);
    case DType::kComplex64:
      return MultiplyComplex<float>(a);
    case DType::kComplex128:
      return MultiplyComplex<double>(a);
  }
}

}  // namespace pelton::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pelton {
namespace {

HWY_EXPORT(ReduceOnTarget);

// A complex sum is the sum of its parts.
ReductionArguments OnPlainElements(ReductionArguments arguments) {
  if (IsComplex(arguments.dtype) && arguments.op != ReduceOp::kProduct) {
    arguments.dtype = RealTypeOf(arguments.dtype);
    arguments.count *= 2;
  }
  return arguments;
}

}  // namespace

void Reduce(absl::Span<const std::byte* const> sources, absl::Span<std::byte* const> targets,
            uint64_t count, DType dtype, ReduceOp op) {
  if (count == 0) return;
  const DefaultFloatingPoint scope;
  HWY_DYNAMIC_DISPATCH(ReduceOnTarget)
  (OnPlainElements({sources.data(), sources.size(), targets.data(), targets.size(), count, dtype,
                    op, sources.size()}));
}

void ReduceToMean(absl::Span<const std::byte* const> sources, absl::Span<std::byte* const> targets,
                  uint64_t count, DType dtype, size_t divisor) {
  if (count == 0) return;
  const DefaultFloatingPoint scope;
  HWY_DYNAMIC_DISPATCH(ReduceOnTarget)
  (OnPlainElements({sources.data(), sources.size(), targets.data(), targets.size(), count, dtype,
                    ReduceOp::kAvg, divisor}));
}

}  // namespace pelton
#endif  // HWY_ONCE
