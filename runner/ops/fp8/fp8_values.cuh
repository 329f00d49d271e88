// Exact conversion of fp8 (e4m3) values to pairs of 16-bit floats, in registers. NaN becomes 480 or
// -480.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_VALUES_CUH_
#define REPRISE_RUNNER_OPS_FP8_FP8_VALUES_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace reprise {

// Returns the values of bytes 1 and 3 of `bytes` as two of T, __half or __nv_bfloat16. Sign,
// exponent and mantissa are moved to their bits in T; the multiplication corrects the exponent's
// bias and normalises subnormal values. For bytes 0 and 2, pass `bytes << 8`.
template <typename T>
__device__ __forceinline__ uint32_t OddFp8Values(uint32_t bytes) {
  constexpr bool kIsHalf = std::is_same_v<T, __half>;
  static_assert(kIsHalf || std::is_same_v<T, __nv_bfloat16>);
  constexpr uint32_t kSigns = 0x80008000u;
  const uint32_t moved =
      kIsHalf ? (bytes & kSigns) | (bytes >> 1 & 0x3F803F80u)   // 4 of the exponent's 5 bits
              : (bytes & kSigns) | (bytes >> 4 & 0x07F007F0u);  // 4 of the exponent's 8 bits
  // 2^8, 2^120
  constexpr uint32_t kBias = kIsHalf ? 0x5C005C00u : 0x7B807B80u;
  using Pair = std::conditional_t<kIsHalf, __half2, __nv_bfloat162>;
  const Pair product =
      __hmul2(*reinterpret_cast<const Pair*>(&moved), *reinterpret_cast<const Pair*>(&kBias));
  return *reinterpret_cast<const uint32_t*>(&product);
}

template <typename T>
__device__ __forceinline__ uint32_t EvenFp8Values(uint32_t bytes) {
  return OddFp8Values<T>(bytes << 8);
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_VALUES_CUH_
