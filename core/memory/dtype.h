// Element types of tensors, and the ways to combine elements.
#ifndef PELTON_CORE_MEMORY_DTYPE_H_
#define PELTON_CORE_MEMORY_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <ostream>

#include "absl/strings/string_view.h"

namespace pelton {

// The numbers are part of the wire format: append only.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kUInt8 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,
  kComplex64 = 10,
  kComplex128 = 11,
};
inline constexpr int kDTypeCount = 12;

// The numbers are Bagua's reduction codes, so that a script may pass them as integers.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kProduct = 1,
  kMin = 2,
  kMax = 3,
  kBitOr = 7,
  kBitAnd = 8,
  kBitXor = 9,
  kAvg = 10,
};

// Size of one element. Units: bytes.
size_t SizeOf(DType dtype);
// As PyTorch writes it, without "torch.": "float32".
absl::string_view NameOf(DType dtype);
absl::string_view NameOf(ReduceOp op);
// Whether elements are made of floating-point numbers: complex ones are.
bool IsFloatingPoint(DType dtype);
bool IsComplex(DType dtype);
// The type of the two numbers that a complex element is made of; any other type is its own.
DType RealTypeOf(DType dtype);

inline std::ostream& operator<<(std::ostream& os, DType dtype) { return os << NameOf(dtype); }
inline std::ostream& operator<<(std::ostream& os, ReduceOp op) { return os << NameOf(op); }

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_DTYPE_H_
