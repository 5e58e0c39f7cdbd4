// Which types have weighted sums.
#ifndef PELTON_COMM_REDUCTION_COMBINABLE_H_
#define PELTON_COMM_REDUCTION_COMBINABLE_H_

#include "core/memory/dtype.h"

namespace pelton {

// float64, float32, float16 and bfloat16.
inline constexpr bool IsCombinable(DType dtype) {
  return dtype == DType::kFloat64 || dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_COMBINABLE_H_
