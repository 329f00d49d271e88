// The two MMAs of attention, by one warp, for K and V in fp8 as stored in the cache
// (KvLoading::kFp8). K and V are converted in registers, between shared memory and the tensor
// cores. float16 holds every value of e4m3 and e5m2.
//
// A matrix load treats a pair of fp8 elements as one 16-bit element.
// - For K, lane l gets four adjacent dims in a register. The tensor cores expect dims j * 2 + {0,
//   1} and j * 2 + 8 + {0, 1} of 16 dims, where j is l % 4. The dims of a dot product may come in
//   any order, so q's dims are permuted in the same way (LoadScaledQueries() of query_loader.cuh).
// - For V, a lane gets two adjacent columns of two keys: the even and the odd columns of 16
//   columns. They take two MMAs, whose result columns interleave in out.
//
// Bound, for 16 keys and 128 dims of e4m3: 4 KB of memory, against 64 conversions of pairs, 16
// permutations, 8 matrix loads and 32 MMAs per warp (compute capability 8.9 and later).

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_FP8_PRODUCTS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_FP8_PRODUCTS_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/fp8_halves.h"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/base/dtype.h"

namespace reprise {

#if __CUDA_ARCH__ < 890
// Converts the two elements that are in the high bytes of the halves.
__device__ __forceinline__ uint32_t E4M3ToHalves(uint32_t elements) {
  const uint32_t scaled = ScaledHalvesOfE4M3(elements);
  const __half2 halves =
      __hmul2(*reinterpret_cast<const __half2*>(&scaled), __float2half2_rn(256.0f));
  return *reinterpret_cast<const uint32_t*>(&halves);
}
#endif

// Converts four elements into two registers: elements 0 and 1 into `low`, 2 and 3 into `high`.
template <DType kStored>
__device__ __forceinline__ void Fp8ToHalves(uint32_t elements, uint32_t& low, uint32_t& high) {
  if constexpr (kStored == DType::kFp8E5M2) {  // e5m2 is float16 without its last 8 bits
    low = __byte_perm(elements, 0, 0x1404);
    high = __byte_perm(elements, 0, 0x3424);
  } else {
#if __CUDA_ARCH__ >= 890
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;\n"
        "}\n"
        : "=r"(low), "=r"(high)
        : "r"(elements));
#else
    low = E4M3ToHalves(__byte_perm(elements, 0, 0x1404));
    high = E4M3ToHalves(__byte_perm(elements, 0, 0x3424));
#endif
  }
}

// Converts a pair of columns of two keys: keys 0 and 1 of the even column into `even`, of the odd
// column into `odd`.
template <DType kStored>
__device__ __forceinline__ void Fp8ColumnsToHalves(uint32_t elements, uint32_t& even,
                                                   uint32_t& odd) {
  if constexpr (kStored == DType::kFp8E5M2) {
    even = elements << 8 & 0xff00ff00u;
    odd = elements & 0xff00ff00u;
  } else {
    Fp8ToHalves<kStored>(__byte_perm(elements, 0, 0x3120), even, odd);
  }
}

// Has the interface of TensorCoreProducts (products.cuh).
template <typename Traits>
class Fp8Products {
 public:
  __device__ __forceinline__ explicit Fp8Products(const AttentionKernelParams& p)
      : is_e5m2_(p.kv_dtype == DType::kFp8E5M2) {}

  __device__ __forceinline__ void TakeQueries(const uint4* q) {
    if constexpr (Traits::kHoldQ) {
#pragma unroll
      for (int d = 0; d < kDimSteps; ++d) LoadQ(q_[d], q, d);
    }
  }

  __device__ __forceinline__ void Logits(const uint4* q, const uint4* k,
                                         float (&s)[Traits::kKeyTiles][4]) const {
    if (is_e5m2_) {
      LogitsOf<DType::kFp8E5M2>(q, k, s);
    } else {
      LogitsOf<DType::kFp8E4M3>(q, k, s);
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void Accumulate(const float (&s)[Traits::kKeyTiles][4], const uint4* v,
                                             uint32_t seen,
                                             float (&o)[Traits::kOutTiles][4]) const {
    if (is_e5m2_) {
      AccumulateOf<DType::kFp8E5M2, kMasked>(s, v, seen, o);
    } else {
      AccumulateOf<DType::kFp8E4M3, kMasked>(s, v, seen, o);
    }
  }

  // A lane holds four adjacent columns of every 16 columns.
  static __device__ __forceinline__ int OutColumn(int n) {
    return n / 2 * 16 + threadIdx.x % 4 * 4 + n % 2 * 2;
  }

 private:
  static constexpr int kDimSteps = Traits::kOwnDims / 16;

  template <DType kStored>
  __device__ __forceinline__ void LogitsOf(const uint4* q, const uint4* k,
                                           float (&s)[Traits::kKeyTiles][4]) const {
    static_assert(Traits::kKeys % 32 == 0);
    const int lane = threadIdx.x % 32;
    const int part = WarpPart<Traits>();
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < kDimSteps; ++d) {
      uint32_t a[4];
      if constexpr (Traits::kHoldQ) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q_[d][i];
      } else {
        LoadQ(a, q, d);
      }
#pragma unroll
      for (int n = 0; n < Traits::kKeys / 32; ++n) {
        uint32_t b[4];  // 16 dims; keys 0-7, 8-15, 16-23, 24-31
        LoadMatrices(b, k + Traits::StoredDimsChunkAt(n * 32 + lane, part, d));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t low, high;
          Fp8ToHalves<kStored>(b[i], low, high);
          MultiplyAdd<__half>(s[n * 4 + i], a, low, high);
        }
      }
    }
  }

  template <DType kStored, bool kMasked>
  __device__ __forceinline__ void AccumulateOf(const float (&s)[Traits::kKeyTiles][4],
                                               const uint4* v, uint32_t seen,
                                               float (&o)[Traits::kOutTiles][4]) const {
    const int lane = threadIdx.x % 32;
    const int first_chunk = WarpPart<Traits>() * (Traits::kOutColumns / 16);
#pragma unroll
    for (int n = 0; n < Traits::kKeys / 16; ++n) {
      const uint32_t a[4] = {Pack<__half>(s[n * 2][0], s[n * 2][1]),
                             Pack<__half>(s[n * 2][2], s[n * 2][3]),
                             Pack<__half>(s[n * 2 + 1][0], s[n * 2 + 1][1]),
                             Pack<__half>(s[n * 2 + 1][2], s[n * 2 + 1][3])};
      const uint32_t low = PairMask(seen >> (n * 4));
      const uint32_t high = PairMask(seen >> (n * 4 + 2));
#pragma unroll
      for (int d = 0; d < Traits::kOutColumns / 16; d += 2) {
        // Keys 0-7 and 8-15 of 16 columns; keys 0-7 and 8-15 of the next 16 columns.
        uint32_t b[4];
        const int key = n * 16 + lane / 8 % 2 * 8 + lane % 8;
        LoadMatricesTransposed(b, v + Traits::StoredValueChunkAt(key, first_chunk + d + lane / 16));
        if constexpr (kMasked) {
          b[0] &= low;
          b[1] &= high;
          b[2] &= low;
          b[3] &= high;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t even[2], odd[2];
          Fp8ColumnsToHalves<kStored>(b[j * 2], even[0], odd[0]);
          Fp8ColumnsToHalves<kStored>(b[j * 2 + 1], even[1], odd[1]);
          float(&left)[4] = o[(d + j) * 2];
          float(&right)[4] = o[(d + j) * 2 + 1];
          MultiplyAdd(left[0], right[0], left[2], right[2], a, even[0], even[1]);
          MultiplyAdd(left[1], right[1], left[3], right[3], a, odd[0], odd[1]);
        }
      }
    }
  }

  static __device__ __forceinline__ void LoadQ(uint32_t (&a)[4], const uint4* q, int d) {
    const int lane = threadIdx.x % 32;
    // Rows 0-7 and 8-15 for the first half of 16 dims, then for the second half.
    const int row = lane / 8 % 2 * 8 + lane % 8;
    LoadMatrices(a, q + Traits::DimsChunkAt(row, WarpPart<Traits>(), d, lane / 16));
  }

  // MultiplyAdd<__half>() with the elements of c as separate arguments.
  static __device__ __forceinline__ void MultiplyAdd(float& c0, float& c1, float& c2, float& c3,
                                                     const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    float c[4] = {c0, c1, c2, c3};
    reprise::MultiplyAdd<__half>(c, a, b0, b1);
    c0 = c[0];
    c1 = c[1];
    c2 = c[2];
    c3 = c[3];
  }
  template <typename T>
  static __device__ __forceinline__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4],
                                                     uint32_t b0, uint32_t b1) {
    reprise::MultiplyAdd<T>(c, a, b0, b1);
  }

  // Expands bits 0 and 1 to masks of a register's halves.
  static __device__ __forceinline__ uint32_t PairMask(uint32_t bits) {
    return (bits & 1 ? 0x0000ffffu : 0u) | (bits & 2 ? 0xffff0000u : 0u);
  }

  const bool is_e5m2_;
  uint32_t q_[Traits::kHoldQ ? kDimSteps : 1][4];
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_FP8_PRODUCTS_CUH_
