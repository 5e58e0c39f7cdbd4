// The two 16-bit floating point types, as bit patterns, to and from float.
#ifndef PELTON_COMM_REDUCTION_HALF_H_
#define PELTON_COMM_REDUCTION_HALF_H_

#include <cstdint>

namespace pelton {

// Exact: every value of the 16-bit types, denormals and NaN payloads included, is a float.
float FloatFromFloat16(uint16_t bits);
float FloatFromBFloat16(uint16_t bits);

// Round to nearest, ties to even; overflow gives infinity, a NaN stays one (quiet, sign kept).
// Source: IEEE 754-2019, 4.3.1.
uint16_t Float16FromFloat(float value);
uint16_t BFloat16FromFloat(float value);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_HALF_H_
