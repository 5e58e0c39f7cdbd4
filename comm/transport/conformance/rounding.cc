#include "comm/transport/conformance/rounding.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace pelton::conformance {
namespace {

constexpr double kMaxInput = 8;  // of the finite ones that MakeExchange takes

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

bool IsFinite(std::complex<double> value) {
  return std::isfinite(value.real()) && std::isfinite(value.imag());
}

bool SamePart(double wanted, double found, double tolerance) {
  if (std::isnan(wanted)) return std::isnan(found);
  if (std::isinf(wanted)) return found == wanted;
  return std::abs(found - wanted) <= tolerance;
}

bool Same(std::complex<double> wanted, std::complex<double> found, ReduceOp op, double tolerance) {
  // Which parts of a complex product become NaN by way of infinity depends on the order.
  const bool is_product = op == ReduceOp::kProduct;
  if (is_product && !IsFinite(wanted)) return !IsFinite(found);
  return SamePart(wanted.real(), found.real(), tolerance) &&
         SamePart(wanted.imag(), found.imag(), tolerance);
}

// Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2002, 4.2 and 3.1.
template <typename T>
double Tolerance(ReduceOp op, int32_t world_size, std::complex<double> wanted) {
  const double n = world_size;
  const double unit = std::numeric_limits<T>::epsilon();
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return 0;
  if (op != ReduceOp::kProduct) return n * n * kMaxInput * unit;
  // Partial products may be denormal.
  return 4 * n * unit * std::abs(wanted) +
         std::pow(kMaxInput, n) * std::numeric_limits<T>::min() * unit;
}

// `parts`: 1, or 2 for complex elements.
template <typename T>
std::string Compare(const Exchange& exchange, size_t parts, const std::vector<std::byte>& expected,
                    const std::byte* actual) {
  const ReduceOp op = exchange.spec.op;
  auto element = [&](const std::byte* at) {
    return std::complex<double>(Load<T>(at), parts == 2 ? Load<T>(at + sizeof(T)) : T{0});
  };
  for (size_t offset = 0; offset < expected.size(); offset += parts * sizeof(T)) {
    const std::complex<double> wanted = element(expected.data() + offset);
    const std::complex<double> found = element(actual + offset);
    const double tolerance = Tolerance<T>(op, exchange.world_size.value(), wanted);
    if (Same(wanted, found, op, tolerance)) continue;
    return absl::StrCat("element ", offset / parts / sizeof(T), " should be within ", tolerance,
                        " of (", wanted.real(), ", ", wanted.imag(), ") and is (", found.real(),
                        ", ", found.imag(), ")");
  }
  return "";
}

}  // namespace

std::string DifferenceBeyondRounding(const Exchange& exchange,
                                     const std::vector<std::byte>& expected,
                                     const std::byte* actual) {
  switch (exchange.spec.dtype) {
    case DType::kFloat32:
      return Compare<float>(exchange, 1, expected, actual);
    case DType::kFloat64:
      return Compare<double>(exchange, 1, expected, actual);
    case DType::kComplex64:
      return Compare<float>(exchange, 2, expected, actual);
    case DType::kComplex128:
      return Compare<double>(exchange, 2, expected, actual);
    default:
      return DifferenceOfElements(exchange.spec.dtype, expected, actual);
  }
}

}  // namespace pelton::conformance
