// Loads a tile's query rows into shared memory. Rows past the last and dims past the head dim
// become zeros without a read.
//
//   LoadQueries()        loads q in the MMA type. Kernels that convert keys also convert q
//   LoadScaledQueries()  loads q as float16, for MMA with fp8 keys (KvLoading::kFp8). Each row is
//                        multiplied by a power of two that makes its largest absolute value at
//                        least 2^14 and below 2^15 (less for values below 2^-112), so a bfloat16
//                        row loses only bits at least 2^38 times smaller than that value. Each 16
//                        dims are in the order of the keys in Fp8Products.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_QUERY_LOADER_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_QUERY_LOADER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/convert.cuh"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// The factor for the dims of a query row that multiply the rope parts of keys. The dot product is
// multiplied by k_scale as a whole, so the factor is the rope part's scale divided by k_scale. Not
// inlined, because few caches have separate rope parts.
inline __device__ __noinline__ float RopeFactor(const AttentionKernelParams& p,
                                                const WorkUnit& unit, int token) {
  int table_row = unit.item.table_row;
  if (unit.item.row == kSharedRow) {
    const int row = RowOfToken(p, token);
    if (p.seq_lens[row] <= 0) return 1.0f;  // its table row is unspecified
    table_row = TableRowOf(p, row);
  } else if (unit.item.key_begin == unit.item.key_end && unit.item.num_shared_partials == 0) {
    return 1.0f;  // as in CompleteUnit()
  }
  return ScaleAt(p.rope_part_scale, table_row, unit.kv_head) /
         ScaleAt(p.k_scale, table_row, unit.kv_head);
}

// Called by `kThreads` threads; `thread` is this thread's index. The copies are asynchronous if
// p.q_is_aligned.
template <typename Traits, int kThreads = Traits::kThreads>
__device__ __forceinline__ void LoadQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                            uint4* to, int thread = threadIdx.x) {
  using Element = typename Traits::Element;
  if (p.q_is_aligned) {  // and q has the MMA type
#pragma unroll 2
    for (int at = thread; at < Traits::kRows * Traits::kKeyChunks; at += kThreads) {
      const int row = at / Traits::kKeyChunks;
      const int chunk = at % Traits::kKeyChunks;
      const TileRow tile_row = RowAt(p, unit, row);
      const bool is_there = row < unit.num_rows && chunk * Traits::kChunk < p.head_dim_qk;
      const int64_t source = tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride +
                             chunk * Traits::kChunk;
      const Element* const q = static_cast<const Element*>(p.q);
      CopyAsync16(SharedAddress(to + Traits::ChunkAt(row, chunk)), is_there ? q + source : q,
                  is_there);
    }
    return;
  }
#pragma unroll 1
  for (int at = thread; at < Traits::kRows * Traits::kKeyChunks; at += kThreads) {
    const int row = at / Traits::kKeyChunks;
    const int chunk = at % Traits::kKeyChunks;
    const int dim = chunk * Traits::kChunk;
    uint4* const place = to + Traits::ChunkAt(row, chunk);
    int64_t source = 0;
    [[maybe_unused]] float rope_factor = 1.0f;
    if (row < unit.num_rows) {
      const TileRow tile_row = RowAt(p, unit, row);
      source = tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride;
      if constexpr (Traits::kConverts) {
        if (p.rope_dim > 0) rope_factor = RopeFactor(p, unit, tile_row.token);
      }
    }
    __align__(16) Element elements[Traits::kChunk];
#pragma unroll
    for (int e = 0; e < Traits::kChunk; ++e) {
      const bool is_there = row < unit.num_rows && dim + e < p.head_dim_qk;
      float value = 0.0f;
      if constexpr (Traits::kConverts) {
        if (is_there) value = LoadFloat(p.q, p.q_dtype, source + dim + e);
        if (dim + e >= p.head_dim_qk - p.rope_dim) value *= rope_factor;
        elements[e] = FromFloat<Element>(value);
      } else {
        elements[e] = is_there ? static_cast<const Element*>(p.q)[source + dim + e]
                               : FromFloat<Element>(value);
      }
    }
    *place = *reinterpret_cast<const uint4*>(elements);
  }
}

// Loads 16 dims of q that begin at element `at`. Dims at or beyond num_dims become zeros.
__device__ __forceinline__ void LoadQueryDims(const AttentionKernelParams& p, int64_t at,
                                              int num_dims, float (&values)[16]) {
  if (p.q_is_aligned && p.q_dtype != DType::kFp8E4M3 && p.q_dtype != DType::kFp8E5M2) {
    const uint4* const chunks =
        reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.q) + at);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      uint4 chunk = {0, 0, 0, 0};
      if (c * 8 < num_dims) chunk = __ldg(chunks + c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = p.q_dtype == DType::kBFloat16 ? PairAt<DType::kBFloat16>(chunk, i)
                                                          : PairAt<DType::kFloat16>(chunk, i);
        values[c * 8 + i * 2] = pair.x;
        values[c * 8 + i * 2 + 1] = pair.y;
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    values[e] = e < num_dims ? LoadFloat(p.q, p.q_dtype, at + e) : 0.0f;
  }
}

// Called by all threads of the CTA. Stores the inverse of each row's factor in row_scales.
template <typename Traits>
__device__ __forceinline__ void LoadScaledQueries(const AttentionKernelParams& p,
                                                  const WorkUnit& unit, uint4* to,
                                                  float* row_scales) {
  constexpr int kBlocks = Traits::kHeadDimQk / 16;
  constexpr int kLanes = kBlocks > 16 ? 32 : kBlocks;  // lanes per row
  constexpr int kPasses = (kBlocks + kLanes - 1) / kLanes;
  static_assert((kLanes & (kLanes - 1)) == 0);
  const int lane = threadIdx.x % kLanes;
#pragma unroll 1
  for (int row = threadIdx.x / kLanes; row < Traits::kRows; row += Traits::kThreads / kLanes) {
    int64_t source = 0;
    int num_dims = 0;
    if (row < unit.num_rows) {
      const TileRow tile_row = RowAt(p, unit, row);
      source = tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride;
      num_dims = p.head_dim_qk;
    }
    float values[kPasses][16];
    float largest = 0.0f;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int dim = (pass * kLanes + lane) * 16;
      LoadQueryDims(p, source + dim, num_dims - dim, values[pass]);
#pragma unroll
      for (int e = 0; e < 16; ++e) largest = fmaxf(largest, fabsf(values[pass][e]));
    }
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
    }
    // Builds the factors 2^(14 - e) and 2^(e - 14) from their bits, for a largest value in [2^e,
    // 2^(e + 1)).
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 15);
    const float factor = __uint_as_float((268 - exponent) << 23);
    if (lane == 0) row_scales[row] = __uint_as_float((exponent - 14) << 23);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int block = pass * kLanes + lane;
      if (block >= kBlocks) continue;
      uint32_t words[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        words[i] = Pack<__half>(values[pass][i * 2] * factor, values[pass][i * 2 + 1] * factor);
      }
      to[Traits::ChunkAt(row, block * 2)] = {words[0], words[2], words[4], words[6]};
      to[Traits::ChunkAt(row, block * 2 + 1)] = {words[1], words[3], words[5], words[7]};
    }
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_QUERY_LOADER_CUH_
