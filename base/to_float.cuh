// Converts loaded elements of type float, half, bfloat16 or fp8 to float.

#ifndef REPRISE_BASE_TO_FLOAT_CUH_
#define REPRISE_BASE_TO_FLOAT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace reprise {

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__nv_fp8_e4m3 x) { return static_cast<float>(x); }
__device__ inline float ToFloat(__nv_fp8_e5m2 x) { return static_cast<float>(x); }

}  // namespace reprise

#endif  // REPRISE_BASE_TO_FLOAT_CUH_
