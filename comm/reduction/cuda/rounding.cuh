// Arithmetic that is rounded once each, and the types that sums are kept in. For sources that nvcc
// compiles.
#ifndef PELTON_COMM_REDUCTION_CUDA_ROUNDING_CUH_
#define PELTON_COMM_REDUCTION_CUDA_ROUNDING_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pelton {

// Rounded once each, whatever the compiler's options say.
__device__ inline float Added(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double Added(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float Multiplied(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double Multiplied(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float Divided(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline double Divided(double a, double b) { return __ddiv_rn(a, b); }

// In what sums are kept, as comm/reduction/reference.h has it.
__device__ inline float Widen(float x) { return x; }
__device__ inline double Widen(double x) { return x; }
__device__ inline float Widen(__half x) { return __half2float(x); }
__device__ inline float Widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
using SumOf = decltype(Widen(T()));

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_CUDA_ROUNDING_CUH_
