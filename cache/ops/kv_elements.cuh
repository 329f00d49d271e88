// Groups of elements that kernels load, convert and store together when they write or read keys and
// values.

#ifndef REPRISE_CACHE_OPS_KV_ELEMENTS_CUH_
#define REPRISE_CACHE_OPS_KV_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "reprise/base/to_float.cuh"
#include "reprise/cache/ops/kv_tokens.h"

namespace reprise {

// The element types for WithTokenType() and WithCacheType().
struct CudaElements {
  using Float64 = void;
  using Float16 = __half;
  using BFloat16 = __nv_bfloat16;
  using Fp8E4M3 = __nv_fp8_e4m3;
  using Fp8E5M2 = __nv_fp8_e5m2;
};

// N elements that are loaded or stored together, in units of at most kAccessBytes.
template <typename T, int N>
struct alignas(N * sizeof(T) < kAccessBytes ? N * sizeof(T) : kAccessBytes) Elements {
  T data[N];
};

// Rounds to nearest, ties to even. fp8 saturates to the largest finite value.
template <typename Dst, int N>
__device__ Elements<Dst, N> Round(const float (&values)[N]) {
  Elements<Dst, N> rounded;
  if constexpr (sizeof(Dst) == 1 && N % 2 == 0) {
    constexpr __nv_fp8_interpretation_t kKind =
        std::is_same_v<Dst, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
#pragma unroll
    for (int i = 0; i < N; i += 2) {  // one instruction converts two values
      const __nv_fp8x2_storage_t pair =
          __nv_cvt_float2_to_fp8x2({values[i], values[i + 1]}, __NV_SATFINITE, kKind);
      rounded.data[i].__x = static_cast<__nv_fp8_storage_t>(pair & 0xff);
      rounded.data[i + 1].__x = static_cast<__nv_fp8_storage_t>(pair >> 8);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<Dst, __half>) {
        rounded.data[i] = __float2half_rn(values[i]);
      } else if constexpr (std::is_same_v<Dst, __nv_bfloat16>) {
        rounded.data[i] = __float2bfloat16_rn(values[i]);
      } else {
        rounded.data[i] = Dst(values[i]);
      }
    }
  }
  return rounded;
}

// Computes values / scale without the branch of an IEEE division: with the reciprocal and the
// remainder (Markstein, 1990).
//
// For values with at most 11 significant bits, the fp8 result equals the result of a true division.
// Proof:
//   1. Before its last rounding, the quotient is correct to 2^-22 ulp. It differs from the
//      correctly rounded float only if the exact quotient is that close to the midpoint between two
//      floats.
//   2. fp8 distinguishes these two floats only if one of them is a tie of fp8: t * 2^e with t of 5
//      bits. The value is then within 2^-22 ulp of scale * (t * 2^20 +- 1) * 2^(e - 20).
//   3. Let scale = S * 2^b with S of 24 bits. The value is a multiple of 2^36 * 2^(b + e - 20). S *
//      (t * 2^20 +- 1) is within 6 of a multiple of 2^36 only if S = k * 2^20 + j, where j * t =
//      -+k and |j| <= 6.
//   4. This is impossible if j != 0, because k < 16 <= t. If j = 0, the product is k * 2^20 times
//      an odd number, which is not a multiple of 2^36.
template <int N>
__device__ void DivideForFp8(float (&values)[N], float scale) {
  constexpr float kLeast = 0x1p-60f, kMost = 0x1p60f;
  if (!(scale > kLeast && scale < kMost)) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = __fdiv_rn(values[i], scale);
    return;
  }
  const float reciprocal = __frcp_rn(scale);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float quotient = values[i] * reciprocal;
    const float remainder = fmaf(-quotient, scale, values[i]);
    const bool is_finite = fabsf(remainder) < INFINITY;  // false for infinities and NaNs
    values[i] = is_finite ? fmaf(remainder, reciprocal, quotient) : quotient;
  }
}

// Returns cast(values / scale), as defined in cache/ops/write_kv.h. kIsExact: the values may have
// more significant bits than DivideForFp8() supports, so uses a true division.
template <typename Dst, bool kIsExact, int N>
__device__ Elements<Dst, N> Quantise(float (&values)[N], float scale) {
  if (scale != 1.0f) {
    if constexpr (sizeof(Dst) == 1 && !kIsExact) {
      DivideForFp8(values, scale);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = __fdiv_rn(values[i], scale);
    }
  }
  return Round<Dst>(values);
}

// Returns cast(loaded / scale).
template <typename Dst, typename Src, int N>
__device__ Elements<Dst, N> Convert(const Elements<Src, N>& loaded, float scale) {
  if constexpr (std::is_same_v<Src, Dst>) {
    if (scale == 1.0f) return loaded;  // bit for bit, NaNs too
  }
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = ToFloat(loaded.data[i]);
  return Quantise<Dst, sizeof(Src) == 4>(values, scale);
}

// Returns cast(loaded * scale).
template <typename Dst, typename Src, int N>
__device__ Elements<Dst, N> Dequantise(const Elements<Src, N>& loaded, float scale) {
  if constexpr (std::is_same_v<Src, Dst>) {
    if (scale == 1.0f) return loaded;  // bit for bit, NaNs too
  }
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = ToFloat(loaded.data[i]) * scale;
  return Round<Dst>(values);
}

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_ELEMENTS_CUH_
