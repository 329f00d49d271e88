// The end of a unit of many rows: the groups' shares are added up and written, as unit_results.cuh does for
// others. A thread has up to eight rows here, so what depends on the row alone, weights and factors, is
// computed once a row and not by every thread of it.
//
// Bound: latency. All of it runs once a unit, from instructions that must be fetched first, so loops are
// not unrolled further than the loads in flight need.

#ifndef ATTENTION_CUDA_VERIFY_VERIFY_RESULTS_CUH_
#define ATTENTION_CUDA_VERIFY_VERIFY_RESULTS_CUH_

#include <cstdint>

#include "attention/cuda/general/attention_kernel_params.h"
#include "attention/cuda/general/online_softmax.cuh"
#include "attention/cuda/general/tile_traits.cuh"
#include "attention/cuda/general/unit_results.cuh"
#include "attention/cuda/general/work_unit.cuh"

namespace reprise {

// In place of that of unit_results.cuh. Called by all threads, which have synchronised.
template <typename Traits, typename Results>
requires(Traits::kWeighsRowsOnce) __device__ __forceinline__
    void WriteUnit(const AttentionKernelParams& p, const WorkUnit& unit, Results& results) {
  constexpr int kRowParts = Traits::kHeadDimV / 4;
  static_assert(Traits::kThreads % kRowParts == 0);
  const bool is_partial = unit.item.partial >= 0;
  const int row = threadIdx.x;
  if (row < unit.num_rows) {
    const TileRow tile_row = RowAt(p, unit, row);
    float weight[Traits::kWarpsN];
    const RowTotal total = WeighGroups<Traits>(results, row, weight);
    float factor;
    if (is_partial) {
      const int64_t partial = PartialAt(p.work, unit.item.partial, tile_row);
      factor = FinishPartialRow<Traits>(total, p.work.partial_lse[partial]);
    } else {
      factor = FinishRow(p, unit, tile_row, total);
    }
    // Each thread has read those of its own row only.
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) results.sum[g][row] = weight[g] * factor;
  }
  Traits::Meet();
  const int column = static_cast<int>(threadIdx.x) % kRowParts * 4;
  if (column < p.head_dim_v) {
#pragma unroll 2
    for (int r = threadIdx.x / kRowParts; r < unit.num_rows; r += Traits::kThreads / kRowParts) {
      float weight[Traits::kWarpsN];
#pragma unroll
      for (int g = 0; g < Traits::kWarpsN; ++g) weight[g] = results.sum[g][r];
      float value[4];
      AddGroups<Traits>(results, weight, r, column, 1.0f, value);
      const TileRow tile_row = RowAt(p, unit, r);
      if (is_partial) {
        StorePartial(p, PartialAt(p.work, unit.item.partial, tile_row), column, value);
      } else {
        StoreFinished<Traits>(p, results, tile_row, r, column, value);
      }
    }
  }
  if (is_partial || p.out_block_scales == nullptr) return;
  Traits::Meet();
  StoreBlocks<Traits>(p, unit, results);
}

}  // namespace reprise

#endif  // ATTENTION_CUDA_VERIFY_VERIFY_RESULTS_CUH_
