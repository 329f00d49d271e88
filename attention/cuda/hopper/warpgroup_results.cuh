// From a tile's sums in registers to out and lse, or to a partial and, in the last CTA to arrive,
// from the partials of a merge to out and lse. Does without shared memory what unit_results.cuh
// does with it; for units where a row's sums are in the four lanes of one quad, and no scale spans
// a row's columns.

#ifndef ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_
#define ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "attention/cuda/general/attention_kernel.cuh"
#include "attention/cuda/general/attention_kernel_params.h"
#include "attention/cuda/general/device_primitives.cuh"
#include "attention/cuda/general/online_softmax.cuh"
#include "attention/cuda/general/partial_merge.cuh"
#include "attention/cuda/general/tile_traits.cuh"
#include "attention/cuda/general/unit_results.cuh"
#include "attention/cuda/general/work_unit.cuh"
#include "attention/cuda/hopper/warpgroup_shared.cuh"
#include "attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// One of the lane's two rows (r: 0, 1), as far as results are concerned.
struct ResultRow {
  bool is_there;
  TileRow row;
};

template <typename Traits>
__device__ __forceinline__ ResultRow ResultRowAt(const PreparedUnit<Traits>& prepared, int r) {
  const PreparedRow& row = prepared.rows[WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8];
  return {row.token >= 0, {row.token - prepared.unit.item.first_token, row.token, row.q_head}};
}

// The lane's first column of its i-th four columns of a row (i < kOutTiles / 2).
__device__ __forceinline__ int QuadColumn(int i) {
  const int lane = threadIdx.x % 32;
  return (2 * i + lane % 2) * 8 + lane % 4 / 2 * 4;
}

// Packs two values of out, of a unit that WritesDirectly().
template <typename Traits>
__device__ __forceinline__ uint32_t PackOut(const AttentionKernelParams& p, float low, float high) {
  if constexpr (Traits::kArrivesAsFp8) {
    if (p.out_dtype == DType::kBFloat16) return Pack<__nv_bfloat16>(low, high);
  }
  return Pack<typename Traits::Element>(low, high);
}

// Writes out and lse.
template <typename Traits>
__device__ __forceinline__ void WriteOut(const AttentionKernelParams& p,
                                         const PreparedUnit<Traits>& prepared,
                                         const OnlineSoftmax<Traits>& softmax) {
  const bool is_odd = threadIdx.x % 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt(prepared, r);
    const RowTotal total = {softmax.max[r], QuadSum(softmax.sum[r])};
    float factor = 0.0f;
    if (result.is_there) factor = FinishRow(p, prepared.unit, result.row, total);
    uint16_t* const out = static_cast<uint16_t*>(p.out) + OutAt(p, result.row);
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      // Neighbours exchange halves: each has two columns of every eight, and gets four of every
      // other eight.
      const uint32_t even = PackOut<Traits>(p, softmax.out[2 * i][r * 2] * factor,
                                            softmax.out[2 * i][r * 2 + 1] * factor);
      const uint32_t odd = PackOut<Traits>(p, softmax.out[2 * i + 1][r * 2] * factor,
                                           softmax.out[2 * i + 1][r * 2 + 1] * factor);
      const uint32_t other = __shfl_xor_sync(kFullWarp, is_odd ? even : odd, 1);
      const uint2 four = is_odd ? uint2{other, odd} : uint2{even, other};
      const int column = QuadColumn(i);
      if (result.is_there && column < p.head_dim_v) *reinterpret_cast<uint2*>(out + column) = four;
    }
  }
}

// Writes the unit's partial: out relative to its own sum, and lse in base 2.
template <typename Traits>
__device__ __forceinline__ void WritePartial(const AttentionKernelParams& p,
                                             const PreparedUnit<Traits>& prepared,
                                             const OnlineSoftmax<Traits>& softmax) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt(prepared, r);
    const float sum = QuadSum(softmax.sum[r]);
    if (!result.is_there) continue;
    const int64_t partial = PartialAt(p.work, prepared.unit.item.partial, result.row);
    const bool sees_any = softmax.max[r] != -INFINITY;
    const float factor = sees_any ? 1.0f / sum : 0.0f;
    if (threadIdx.x % 4 == 0) {
      p.work.partial_lse[partial] = sees_any ? softmax.max[r] + log2f(sum) : -INFINITY;
    }
    float* const out = p.work.partial_out + partial * p.head_dim_v;
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      const int column = n * 8 + threadIdx.x % 4 * 2;
      if (column >= p.head_dim_v) continue;
      *reinterpret_cast<float2*>(out + column) = {softmax.out[n][r * 2] * factor,
                                                  softmax.out[n][r * 2 + 1] * factor};
    }
  }
}

// Adds up the partials of the unit's merge in key order, whichever CTA arrived last, and writes
// out.
template <typename Traits>
__device__ __forceinline__ void MergeRows(const AttentionKernelParams& p,
                                          const PreparedUnit<Traits>& prepared) {
  const PartialList partials = OwnPartials(p, prepared.unit.item);
#pragma unroll 1
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt(prepared, r);
    if (!result.is_there) continue;
    const int64_t first = PartialAt(p.work, partials.first, result.row);
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
    const float factor = FinishRow(p, prepared.unit, result.row, total);
    uint16_t* const out = static_cast<uint16_t*>(p.out) + OutAt(p, result.row);
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      const int column = QuadColumn(i);
      if (column >= p.head_dim_v) continue;
      *reinterpret_cast<uint2*>(out + column) = {
          PackOut<Traits>(p, sum[i][0] * factor, sum[i][1] * factor),
          PackOut<Traits>(p, sum[i][2] * factor, sum[i][3] * factor)};
    }
  }
}

// Writes the results of the warpgroups. Called by all threads that compute.
template <typename Traits>
__device__ __forceinline__ void FinishWarpgroupUnit(const AttentionKernelParams& p,
                                                    PreparedUnit<Traits>& prepared,
                                                    const OnlineSoftmax<Traits>& softmax,
                                                    WarpgroupShared<Traits>& shared) {
  WorkUnit& unit = prepared.unit;
  if (!prepared.writes_directly) {
    FinishThroughShared<Traits>(p, unit, softmax, shared.attention);
    shared.results_are_out.Arrive();
    return;
  }
  if (unit.item.partial < 0) return WriteOut<Traits>(p, prepared, softmax);
  WritePartial<Traits>(p, prepared, softmax);
  if (ArriveAtMerge<Traits>(p, unit, shared.attention.is_last_arrival)) {
    MergeRows<Traits>(p, prepared);
  }
}

}  // namespace reprise

#endif  // ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_
