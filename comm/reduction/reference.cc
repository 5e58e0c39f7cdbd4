#include "comm/reduction/reference.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>

#include "comm/reduction/half.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// How an element type is stored and in which type it is accumulated.
template <typename Element>
struct Plain {
  using Stored = Element;
  using Accumulator = Element;
  static Accumulator Widen(Stored value) { return value; }
  static Stored Narrow(Accumulator value) { return value; }
};

struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Widen(uint16_t bits) { return FloatFromFloat16(bits); }
  static uint16_t Narrow(float value) { return Float16FromFloat(value); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Widen(uint16_t bits) { return FloatFromBFloat16(bits); }
  static uint16_t Narrow(float value) { return BFloat16FromFloat(value); }
};

struct Bool {
  using Stored = uint8_t;
  using Accumulator = bool;
  static bool Widen(uint8_t byte) { return byte != 0; }
  static uint8_t Narrow(bool value) { return value ? 1 : 0; }
};

template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

// Arithmetic on integers goes through 64 unsigned bits, where wrapping is defined; what is kept of
// it are the low bits.
template <typename T>
T Add(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T Multiply(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (kIsInteger<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else if constexpr (kIsComplex<T>) {
    // Not operator*, which repairs infinities in its own way.
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else {
    return a * b;
  }
}

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <typename T>
T BitOperation(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kBitOr) return static_cast<T>(a | b);
  if (op == ReduceOp::kBitAnd) return static_cast<T>(a & b);
  return static_cast<T>(a ^ b);
}

template <typename T>
T Combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return Add(a, b);
  if (op == ReduceOp::kProduct) return Multiply(a, b);
  if constexpr (!kIsComplex<T>) {
    if (op == ReduceOp::kMin) return b < a || IsNan(b) ? b : a;
    if (op == ReduceOp::kMax) return b > a || IsNan(b) ? b : a;
  }
  if constexpr (std::is_integral_v<T>) return BitOperation(op, a, b);
  PELTON_CHECK(false) << NameOf(op) << " passed CheckReducible";
  return a;
}

template <typename T>
T DivideBy(T sum, size_t divisor) {
  if constexpr (kIsInteger<T>) {
    // Through 64 bits: the divisor need not fit into T.
    if constexpr (std::is_signed_v<T>) {
      return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(divisor));
    } else {
      return static_cast<T>(sum / divisor);
    }
  } else if constexpr (kIsComplex<T>) {
    const auto real_divisor = static_cast<typename T::value_type>(divisor);
    return T(sum.real() / real_divisor, sum.imag() / real_divisor);
  } else if constexpr (std::is_same_v<T, bool>) {
    return sum;
  } else {
    return sum / static_cast<T>(divisor);
  }
}

template <typename Type>
void Reduce(absl::Span<const std::byte* const> sources, std::byte* target, uint64_t count,
            ReduceOp op, size_t divisor) {
  using Stored = typename Type::Stored;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t offset = i * sizeof(Stored);
    auto load = [offset](const std::byte* source) {
      Stored stored;
      std::memcpy(&stored, source + offset, sizeof(stored));
      return Type::Widen(stored);
    };
    typename Type::Accumulator accumulator = load(sources[0]);
    for (const std::byte* source : sources.subspan(1)) {
      accumulator = Combine(op, accumulator, load(source));
    }
    if (op == ReduceOp::kAvg) accumulator = DivideBy(accumulator, divisor);
    const Stored stored = Type::Narrow(accumulator);
    std::memcpy(target + offset, &stored, sizeof(stored));
  }
}

using ReduceFunction = void (*)(absl::Span<const std::byte* const>, std::byte*, uint64_t, ReduceOp,
                                size_t);

// By DType.
constexpr ReduceFunction kReduceFunctions[kDTypeCount] = {
    Reduce<Plain<float>>,
    Reduce<Plain<double>>,
    Reduce<Float16>,
    Reduce<BFloat16>,
    Reduce<Plain<uint8_t>>,
    Reduce<Plain<int8_t>>,
    Reduce<Plain<int16_t>>,
    Reduce<Plain<int32_t>>,
    Reduce<Plain<int64_t>>,
    Reduce<Bool>,
    Reduce<Plain<std::complex<float>>>,
    Reduce<Plain<std::complex<double>>>,
};

}  // namespace

absl::Status ReferenceReduce(absl::Span<const std::byte* const> sources, std::byte* target,
                             uint64_t count, DType dtype, ReduceOp op) {
  PELTON_CHECK(!sources.empty());
  RETURN_IF_ERROR(CheckReducible(dtype, op));
  kReduceFunctions[static_cast<int>(dtype)](sources, target, count, op, sources.size());
  return absl::OkStatus();
}

absl::Status ReferenceReduceToMean(absl::Span<const std::byte* const> sources, std::byte* target,
                                   uint64_t count, DType dtype, size_t divisor) {
  PELTON_CHECK(!sources.empty());
  RETURN_IF_ERROR(CheckReducible(dtype, ReduceOp::kAvg));
  kReduceFunctions[static_cast<int>(dtype)](sources, target, count, ReduceOp::kAvg, divisor);
  return absl::OkStatus();
}

}  // namespace pelton
