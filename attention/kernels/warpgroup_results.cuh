// From a tile's sums in registers to out and lse, or to a partial and, by the last CTA to arrive, from
// the partials of a merge to out and lse. What unit_results.cuh does by way of shared memory, without
// it: where a row's sums are in the four lanes of one quad, and no scale spans a row's columns.

#ifndef ATTENTION_KERNELS_WARPGROUP_RESULTS_CUH_
#define ATTENTION_KERNELS_WARPGROUP_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/online_softmax.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/unit_results.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

// The lane's first column of its i-th four columns of a row (i < kOutTiles / 2).
__device__ __forceinline__ int QuadColumn(int i) {
  const int lane = threadIdx.x % 32;
  return (2 * i + lane % 2) * 8 + lane % 4 / 2 * 4;
}

// Those columns of row r (0, 1) of the lane. Neighbours exchange halves: each holds two columns of
// every eight, and gets four of every other eight.
template <typename Traits>
__device__ __forceinline__ void QuadValues(const float (&out)[Traits::kOutTiles][4], int r, int i,
                                           float factor, float (&value)[4]) {
  const bool is_odd = threadIdx.x % 2;
  float own[2];
  float other[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float even_tile = out[2 * i][r * 2 + j] * factor;
    const float odd_tile = out[2 * i + 1][r * 2 + j] * factor;
    own[j] = is_odd ? odd_tile : even_tile;
    other[j] = __shfl_xor_sync(kFullWarp, is_odd ? even_tile : odd_tile, 1);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    value[j] = is_odd ? other[j] : own[j];
    value[2 + j] = is_odd ? own[j] : other[j];
  }
}

// One of the lane's two rows, as far as results go.
struct ResultRow {
  bool is_there;
  TileRow row;
  RowTotal total;
};

template <typename Traits>
__device__ __forceinline__ ResultRow ResultRowAt(const AttentionKernelParams& p,
                                                 const WorkUnit& unit,
                                                 const OnlineSoftmax<Traits>& softmax, int r) {
  const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8;
  ResultRow result;
  result.is_there = row < unit.num_rows;
  result.row = RowAt(p, unit, result.is_there ? row : 0);
  result.total = {softmax.max[r], QuadSum(softmax.sum[r])};
  return result;
}

// Four columns of a row of out, in the products' type. REQUIRES: p.out_is_aligned.
template <typename Traits>
__device__ __forceinline__ void StoreQuad(const AttentionKernelParams& p, int64_t at, int column,
                                          const float (&value)[4]) {
  using Element = typename Traits::Element;
  const uint2 bits = {Pack<Element>(value[0], value[1]), Pack<Element>(value[2], value[3])};
  *reinterpret_cast<uint2*>(static_cast<Element*>(p.out) + at + column) = bits;
}

// Writes out and lse.
template <typename Traits>
__device__ __forceinline__ void WriteOut(const AttentionKernelParams& p, const WorkUnit& unit,
                                         const OnlineSoftmax<Traits>& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt(p, unit, softmax, r);
    const float factor = result.is_there ? FinishRow(p, unit, result.row, result.total) : 0.0f;
    const int64_t at = OutAt(p, result.row);
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      float value[4];
      QuadValues<Traits>(softmax.out, r, i, factor, value);
      const int column = QuadColumn(i);
      if (result.is_there && column < p.head_dim_v) StoreQuad<Traits>(p, at, column, value);
    }
  }
}

// Writes the unit's partial: out relative to its own sum, and lse in base 2.
template <typename Traits>
__device__ __forceinline__ void WritePartial(const AttentionKernelParams& p, const WorkUnit& unit,
                                             const OnlineSoftmax<Traits>& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt(p, unit, softmax, r);
    const int64_t partial = PartialAt(p.work, unit.item.partial, result.row);
    const bool sees_any = result.total.max != -INFINITY;
    const float factor = sees_any ? 1.0f / result.total.sum : 0.0f;
    if (result.is_there && threadIdx.x % 4 == 0) {
      p.work.partial_lse[partial] =
          sees_any ? result.total.max + log2f(result.total.sum) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      float value[4];
      QuadValues<Traits>(softmax.out, r, i, factor, value);
      const int column = QuadColumn(i);
      if (!result.is_there || column >= p.head_dim_v) continue;
      *reinterpret_cast<float4*>(p.work.partial_out + partial * p.head_dim_v + column) = {
          value[0], value[1], value[2], value[3]};
    }
  }
}

// Adds up the partials of the unit's merge, in key order whoever arrived last, and writes out.
template <typename Traits>
__device__ __forceinline__ void MergeRows(const AttentionKernelParams& p, const WorkUnit& unit) {
  const PartialList partials = OwnPartials(p.work, unit.item);
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    const int tile_row = WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8;
    if (tile_row >= unit.num_rows) continue;
    const TileRow row = RowAt(p, unit, tile_row);
    const int64_t first = PartialAt(p.work, partials.first, row);
    RowTotal total{-INFINITY, 0.0f};
    for (int j = 0; j < partials.count; ++j) {
      total.max = fmaxf(total.max, __ldcg(p.work.partial_lse + first + j * partials.stride));
    }
    const float reference = Reference(total.max);
    float sum[Traits::kOutTiles / 2][4] = {};
#pragma unroll 1
    for (int j = 0; j < partials.count; ++j) {
      const int64_t partial = first + j * partials.stride;
      const float weight = exp2f(__ldcg(p.work.partial_lse + partial) - reference);
      total.sum += weight;
      const float* const out = p.work.partial_out + partial * p.head_dim_v;
#pragma unroll
      for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
        const int column = QuadColumn(i);
        if (column >= p.head_dim_v) continue;
        const float4 value = __ldcg(reinterpret_cast<const float4*>(out + column));
        sum[i][0] = fmaf(value.x, weight, sum[i][0]);
        sum[i][1] = fmaf(value.y, weight, sum[i][1]);
        sum[i][2] = fmaf(value.z, weight, sum[i][2]);
        sum[i][3] = fmaf(value.w, weight, sum[i][3]);
      }
    }
    const float factor = FinishRow(p, unit, row, total);
    const int64_t at = OutAt(p, row);
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      const int column = QuadColumn(i);
      if (column >= p.head_dim_v) continue;
      const float value[4] = {sum[i][0] * factor, sum[i][1] * factor, sum[i][2] * factor,
                              sum[i][3] * factor};
      StoreQuad<Traits>(p, at, column, value);
    }
  }
}

// Writes what the CTA found, by all threads; they meet after it before they write shared memory.
template <typename Traits>
__device__ __forceinline__ void FinishWarpgroupUnit(const AttentionKernelParams& p, WorkUnit& unit,
                                                    const OnlineSoftmax<Traits>& softmax,
                                                    AttentionShared<Traits>& shared) {
  // In few instructions where nothing is special: a unit runs through them once.
  if (p.out_dtype != Traits::kTile.dtype || !p.out_is_aligned || p.head_dim_v % 4 != 0 ||
      p.out_block_scales != nullptr || unit.item.row == kSharedRow ||
      unit.item.num_shared_partials > 0) {
    FinishThroughShared<Traits>(p, unit, softmax, shared);
    return;
  }
  if (unit.item.partial < 0) {
    WriteOut<Traits>(p, unit, softmax);
    return;
  }
  WritePartial<Traits>(p, unit, softmax);
  if (ArriveAtMerge(p, unit, shared.is_last_arrival)) MergeRows<Traits>(p, unit);
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WARPGROUP_RESULTS_CUH_
