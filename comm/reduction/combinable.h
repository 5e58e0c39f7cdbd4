// Which types have weighted sums, and which weights are equal shares.
#ifndef PELTON_COMM_REDUCTION_COMBINABLE_H_
#define PELTON_COMM_REDUCTION_COMBINABLE_H_

#include "core/memory/dtype.h"

namespace pelton {

// float64, float32, float16 and bfloat16.
inline constexpr bool IsCombinable(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

// How far n times a factor may be from 1 where it means a share of n, because it was computed
// somehow: 1.0 / 3, or 1 - 2.0 / 3.
inline constexpr double kShareRounding = 1e-9;

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_COMBINABLE_H_
