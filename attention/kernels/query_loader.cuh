// Brings a tile's rows of q into shared memory; rows beyond the last and dims beyond the head dim
// become zeros.

#ifndef ATTENTION_KERNELS_QUERY_LOADER_CUH_
#define ATTENTION_KERNELS_QUERY_LOADER_CUH_

#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/convert.cuh"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

// By `kThreads` threads, of which this is `thread`, in part asynchronously.
template <typename Traits, int kThreads = Traits::kThreads>
__device__ __forceinline__ void LoadQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                            uint4* to, int thread = threadIdx.x) {
  using Element = typename Traits::Element;
  if (p.q_is_aligned) {  // and of the products' type
#pragma unroll 2
    for (int at = threadIdx.x; at < Traits::kRows * Traits::kKeyChunks; at += Traits::kThreads) {
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
    if (row < unit.num_rows) {
      const TileRow tile_row = RowAt(p, unit, row);
      source = tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride;
    }
    __align__(16) Element elements[Traits::kChunk];
#pragma unroll
    for (int e = 0; e < Traits::kChunk; ++e) {
      const bool is_there = row < unit.num_rows && dim + e < p.head_dim_qk;
      float value = 0.0f;
      if constexpr (Traits::kConverts) {
        if (is_there) value = LoadFloat(p.q, p.q_dtype, source + dim + e);
        elements[e] = FromFloat<Element>(value);
      } else {
        elements[e] = is_there ? static_cast<const Element*>(p.q)[source + dim + e]
                               : FromFloat<Element>(value);
      }
    }
    *place = *reinterpret_cast<const uint4*>(elements);
  }
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_QUERY_LOADER_CUH_
