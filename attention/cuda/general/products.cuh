// The two MMAs of attention for 16 rows and a KV tile, by one warp: logits = Q K^T, and out += P V.
// 16-bit types use tensor cores with float32 sums. float32 uses FFMA in full precision.
//
// All classes have the same layout of logits (logits.cuh). In out, lane l holds the columns
// OutColumn(n) + {0, 1} of the warp's part, for row l / 4 (o[n][0], o[n][1]) and row l / 4 + 8
// (o[n][2], o[n][3]).
//
// If kWarpsD warps have the same rows, each warp multiplies its part of the dims, adds the partial
// logits of the other warps through shared memory, and accumulates its part of out's columns.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_PRODUCTS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_PRODUCTS_CUH_

#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/fp8_products.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"

namespace reprise {

template <typename Traits>
class TensorCoreProducts {
 public:
  __device__ __forceinline__ explicit TensorCoreProducts(const AttentionKernelParams&) {}

  // `q` is the warp's 16 rows.
  __device__ __forceinline__ void TakeQueries(const uint4* q) {
    if constexpr (Traits::kHoldQ) {
#pragma unroll
      for (int d = 0; d < kDimSteps; ++d) LoadQ(q_[d], q, d);
    }
  }

  // s = Q K^T of a KV tile, over the warp's part of the dims.
  __device__ __forceinline__ void Logits(const uint4* q, const uint4* k,
                                         float (&s)[Traits::kKeyTiles][4]) const {
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
      for (int n = 0; n < Traits::kKeys / 16; ++n) {
        // Keys 0-7 and dims 0-7, dims 8-15; keys 8-15 and dims 0-7, dims 8-15.
        uint32_t b[4];
        const int key = n * 16 + lane / 16 * 8 + lane % 8;
        const uint4* const first = k + Traits::DimsChunkAt(key, part, 0, lane / 8 % 2);
        LoadMatrices(b, StepChunk(SharedAddress(first), d * Traits::kWarpsD));
        MultiplyAdd<Element>(s[n * 2], a, b[0], b[1]);
        MultiplyAdd<Element>(s[n * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  // o += P V. If kMasked, adds only keys whose bit of `seen` (MaskLogits()) is set: V of other keys
  // may be NaN, and 0 x NaN is NaN.
  template <bool kMasked>
  __device__ __forceinline__ void Accumulate(const float (&s)[Traits::kKeyTiles][4], const uint4* v,
                                             uint32_t seen,
                                             float (&o)[Traits::kOutTiles][4]) const {
    const int lane = threadIdx.x % 32;
    const int first_chunk = WarpPart<Traits>() * (Traits::kOutColumns / Traits::kChunk);
#pragma unroll
    for (int n = 0; n < Traits::kKeys / 16; ++n) {
      const uint32_t a[4] = {Pack<Element>(s[n * 2][0], s[n * 2][1]),
                             Pack<Element>(s[n * 2][2], s[n * 2][3]),
                             Pack<Element>(s[n * 2 + 1][0], s[n * 2 + 1][1]),
                             Pack<Element>(s[n * 2 + 1][2], s[n * 2 + 1][3])};
      const uint32_t low = PairMask(seen >> (n * 4));
      const uint32_t high = PairMask(seen >> (n * 4 + 2));
#pragma unroll
      for (int d = 0; d < Traits::kOutColumns / 16; ++d) {
        // Keys 0-7, keys 8-15 and dims 0-7; keys 0-7, keys 8-15 and dims 8-15.
        uint32_t b[4];
        const int key = n * 16 + lane / 8 % 2 * 8 + lane % 8;
        const uint4* const first = v + Traits::ValueChunkAt(key, first_chunk + lane / 16);
        LoadMatricesTransposed(b, StepChunk(SharedAddress(first), d));
        if constexpr (kMasked) {
          b[0] &= low;
          b[1] &= high;
          b[2] &= low;
          b[3] &= high;
        }
        MultiplyAdd<Element>(o[d * 2], a, b[0], b[1]);
        MultiplyAdd<Element>(o[d * 2 + 1], a, b[2], b[3]);
      }
    }
  }

  static __device__ __forceinline__ int OutColumn(int n) { return n * 8 + threadIdx.x % 4 * 2; }

 private:
  using Element = typename Traits::Element;
  static constexpr int kDimSteps = Traits::kOwnDims / 16;

  static __device__ __forceinline__ void LoadQ(uint32_t (&a)[4], const uint4* q, int d) {
    const int lane = threadIdx.x % 32;
    // Rows 0-7, rows 8-15 and dims 0-7; rows 0-7, rows 8-15 and dims 8-15.
    const int row = lane / 8 % 2 * 8 + lane % 8;
    LoadMatrices(a, q + Traits::DimsChunkAt(row, WarpPart<Traits>(), d, lane / 16));
  }

  // Returns the address 2 * d chunks after `chunk` in a swizzled row. REQUIRES: the unswizzled
  // index of `chunk` and 2 * (d % 4) have no bit in common; rows begin at multiples of 8 chunks.
  static __device__ __forceinline__ uint32_t StepChunk(uint32_t chunk, int d) {
    return (chunk ^ d % 4 * 32) + d / 4 * 128;
  }

  // Expands bits 0 and 1 to masks of a register's halves.
  static __device__ __forceinline__ uint32_t PairMask(uint32_t bits) {
    return (bits & 1 ? 0x0000ffffu : 0u) | (bits & 2 ? 0xffff0000u : 0u);
  }

  uint32_t q_[Traits::kHoldQ ? kDimSteps : 1][4];
};

template <typename Traits>
class FloatProducts {
 public:
  __device__ __forceinline__ explicit FloatProducts(const AttentionKernelParams&) {}

  __device__ __forceinline__ void TakeQueries(const uint4*) {}

  __device__ __forceinline__ void Logits(const uint4* q, const uint4* k,
                                         float (&s)[Traits::kKeyTiles][4]) const {
    constexpr int kOwnChunks = Traits::kOwnDims / Traits::kChunk;
    const int lane = threadIdx.x % 32;
    const int first_chunk = WarpPart<Traits>() * kOwnChunks;
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
    }
#pragma unroll 4
    for (int chunk = first_chunk; chunk < first_chunk + kOwnChunks; ++chunk) {
      const float4 q0 = FloatsOf(q + Traits::ChunkAt(lane / 4, chunk));
      const float4 q1 = FloatsOf(q + Traits::ChunkAt(lane / 4 + 8, chunk));
#pragma unroll
      for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float4 key = FloatsOf(k + Traits::ChunkAt(n * 8 + lane % 4 * 2 + j, chunk));
          s[n][j] = Dot(q0, key, s[n][j]);
          s[n][2 + j] = Dot(q1, key, s[n][2 + j]);
        }
      }
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void Accumulate(const float (&s)[Traits::kKeyTiles][4], const uint4* v,
                                             uint32_t seen,
                                             float (&o)[Traits::kOutTiles][4]) const {
    const int lane = threadIdx.x % 32;
    const int first_chunk = WarpPart<Traits>() * (Traits::kOutColumns / Traits::kChunk);
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll 1
      for (int pair = 0; pair < 4; ++pair) {
        const int holder = (lane & ~3) + pair;  // the lane that holds the logits of these two keys
        const uint32_t seen_by_holder = __shfl_sync(kFullWarp, seen, holder);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float p0 = __shfl_sync(kFullWarp, s[n][j], holder);
          const float p1 = __shfl_sync(kFullWarp, s[n][2 + j], holder);
          if (kMasked && (seen_by_holder >> (n * 2 + j) & 1) == 0) continue;
          const int key = n * 8 + pair * 2 + j;
#pragma unroll
          for (int d = 0; d < Traits::kOutColumns / 16; ++d) {
            const float4 value =
                FloatsOf(v + Traits::ValueChunkAt(key, first_chunk + d * 4 + lane % 4));
            o[d * 2][0] = fmaf(p0, value.x, o[d * 2][0]);
            o[d * 2][1] = fmaf(p0, value.y, o[d * 2][1]);
            o[d * 2 + 1][0] = fmaf(p0, value.z, o[d * 2 + 1][0]);
            o[d * 2 + 1][1] = fmaf(p0, value.w, o[d * 2 + 1][1]);
            o[d * 2][2] = fmaf(p1, value.x, o[d * 2][2]);
            o[d * 2][3] = fmaf(p1, value.y, o[d * 2][3]);
            o[d * 2 + 1][2] = fmaf(p1, value.z, o[d * 2 + 1][2]);
            o[d * 2 + 1][3] = fmaf(p1, value.w, o[d * 2 + 1][3]);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ int OutColumn(int n) {
    return n / 2 * 16 + threadIdx.x % 4 * 4 + n % 2 * 2;
  }

 private:
  static __device__ __forceinline__ float4 FloatsOf(const uint4* chunk) {
    return *reinterpret_cast<const float4*>(chunk);
  }

  static __device__ __forceinline__ float Dot(const float4& a, const float4& b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
  }
};

template <typename Traits>
struct ProductsOf {
  using Type =
      std::conditional_t<Traits::kTensorCores, TensorCoreProducts<Traits>, FloatProducts<Traits>>;
};
template <typename Traits>
requires Traits::kFp8 struct ProductsOf<Traits> {
  using Type = Fp8Products<Traits>;
};
template <typename Traits>
using Products = typename ProductsOf<Traits>::Type;

// s = Q K^T of a KV tile. `q`: the warp's 16 rows. If kWarpsD > 1, the warps with the same rows add
// up their parts through shared memory:
// 1. Each warp writes its partial logits.
// 2. Named barrier of the kWarpsD warps: all partial logits are visible to them.
// 3. Each warp reads and adds all partial logits, in the same order, so the sums of all warps are
//    bitwise identical.
//
// The group barrier at the end of a KV tile (AttendSteps()) separates these reads from the writes
// of the next KV tile.
template <typename Traits>
__device__ __forceinline__ void MultiplyKeys(const Products<Traits>& products, const uint4* q,
                                             const uint4* k, AttentionShared<Traits>& shared,
                                             float (&s)[Traits::kKeyTiles][4]) {
  products.Logits(q, k, s);
  if constexpr (Traits::kWarpsD > 1) {
    const int lane = threadIdx.x % 32;
    const int warp_m = WarpRow<Traits>() / 16;
    auto& parts = shared.PartsOf(warp_m);
    const int own = WarpPart<Traits>();
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
      parts[own][n][lane] = {s[n][0], s[n][1], s[n][2], s[n][3]};
    }
    NamedBarrierSync(1 + warp_m, Traits::kWarpsD * 32);
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
      float4 sum = parts[0][n][lane];
#pragma unroll
      for (int part = 1; part < Traits::kWarpsD; ++part) {
        const float4 more = parts[part][n][lane];
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
      }
      s[n][0] = sum.x;
      s[n][1] = sum.y;
      s[n][2] = sum.z;
      s[n][3] = sum.w;
    }
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_PRODUCTS_CUH_
