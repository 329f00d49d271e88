// Conversions from the types of caches and queries to the MMA types, and from float to the types of
// out. A conversion is exact if the MMA type holds every value of the source type: fp8 in every MMA
// type, 16-bit types in float32.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_CONVERT_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_CONVERT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/base/dtype.h"

namespace reprise {

__device__ __forceinline__ float2 Fp8PairToFloats(uint16_t pair, __nv_fp8_interpretation_t kind) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, kind);
  return __half22float2(__half2(halves));
}

// Returns elements 2 * i and 2 * i + 1 of a 16-byte chunk of kSource.
template <DType kSource>
__device__ __forceinline__ float2 PairAt(const uint4& chunk, int i) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  if constexpr (kSource == DType::kFloat32) {
    return {__uint_as_float(words[i * 2]), __uint_as_float(words[i * 2 + 1])};
  } else if constexpr (kSource == DType::kFloat16) {
    return __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
  } else if constexpr (kSource == DType::kBFloat16) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&words[i]));
  } else {
    constexpr auto kKind = kSource == DType::kFp8E4M3 ? __NV_E4M3 : __NV_E5M2;
    return Fp8PairToFloats(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)), kKind);
  }
}

// Converts a 16-byte chunk of kSource to the same number of elements of type Element, in
// consecutive chunks.
template <DType kSource, typename Element>
__device__ __forceinline__ void ConvertChunk(const uint4& from,
                                             uint4 (&to)[sizeof(Element) / SizeOf(kSource)]) {
  constexpr int kWords = 4 * sizeof(Element) / SizeOf(kSource);
  uint32_t words[kWords];
  constexpr int kPairs = 8 / SizeOf(kSource);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 pair = PairAt<kSource>(from, i);
    if constexpr (std::is_same_v<Element, float>) {
      words[i * 2] = __float_as_uint(pair.x);
      words[i * 2 + 1] = __float_as_uint(pair.y);
    } else {
      words[i] = Pack<Element>(pair.x, pair.y);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    to[i] = {words[i * 4], words[i * 4 + 1], words[i * 4 + 2], words[i * 4 + 3]};
  }
}

// Loads element `index` of an array of `dtype`.
__device__ __forceinline__ float LoadFloat(const void* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(base)[index]);
    case DType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[index]);
    case DType::kFp8E4M3:
      return Fp8PairToFloats(static_cast<const uint8_t*>(base)[index], __NV_E4M3).x;
    case DType::kFp8E5M2:
      return Fp8PairToFloats(static_cast<const uint8_t*>(base)[index], __NV_E5M2).x;
    default:
      return static_cast<const float*>(base)[index];
  }
}

// Rounds to nearest. Values beyond the range of fp8 become its largest value.
template <typename T>
__device__ __forceinline__ uint32_t StoredBits(float value);
template <>
__device__ __forceinline__ uint32_t StoredBits<__half>(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
template <>
__device__ __forceinline__ uint32_t StoredBits<__nv_bfloat16>(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
template <>
__device__ __forceinline__ uint32_t StoredBits<__nv_fp8_e4m3>(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}
template <>
__device__ __forceinline__ uint32_t StoredBits<__nv_fp8_e5m2>(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
}

// The value to which a block scale maps the block's largest absolute value.
__device__ __forceinline__ float LargestOf(DType dtype) {
  return dtype == DType::kFp8E5M2 ? 57344.0f : 448.0f;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_CONVERT_CUH_
