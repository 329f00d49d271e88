// The register epilogue of the warpgroup kernels. Writes a tile's accumulators from registers to
// out and lse, or to a partial. The last CTA to arrive at a combine combines the partials and
// writes out and lse. Collects out in the memory of the unit's queries, and does not need the
// memory of keys and values, in contrast to unit_results.cuh. REQUIRES: the accumulators of a row
// are in the four lanes of a quad; WritesDirectly() (warpgroup_unit.cuh).

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/partial_combine.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/unit_results.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_shared.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// The destination of one of the lane's two rows (r: 0, 1).
struct ResultRow {
  bool is_there;
  TileRow row;
};

template <typename Traits>
__device__ __forceinline__ ResultRow ResultRowAt(const PreparedUnit<Traits>& prepared, int r) {
  const PreparedRow& row = prepared.rows[WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8];
  return {row.token >= 0, {row.token - prepared.unit.item.first_token, row.token, row.q_head}};
}

// The first column of the lane's i-th four columns of a row (i < kOutTiles / 2).
__device__ __forceinline__ int QuadColumn(int i) {
  const int lane = threadIdx.x % 32;
  return (2 * i + lane % 2) * 8 + lane % 4 / 2 * 4;
}

// Packs two values in the type of out. REQUIRES: the unit WritesDirectly().
template <typename Traits>
__device__ __forceinline__ uint32_t PackOut(const AttentionKernelParams& p, float low, float high) {
  if constexpr (Traits::kArrivesAsFp8) {
    if (p.out_dtype == DType::kBFloat16) return Pack<__nv_bfloat16>(low, high);
  }
  return Pack<typename Traits::Element>(low, high);
}

// Stores four matrices of 8 x 8 16-bit values. The lanes hold pairs in the layout of mma.m16n8k16.
// Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void StoreMatrices(uint32_t address, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// Stores 16 bytes if is_there. Does not branch.
__device__ __forceinline__ void StoreGlobal16(void* to, const uint4& value, bool is_there) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.b32 there, %5, 0;\n"
      "@there st.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
      "}\n" ::"l"(to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(static_cast<int>(is_there))
      : "memory");
}

// Computes the factors of the lane's two rows of out, and writes lse. Even lanes compute the factor
// of the first row, odd lanes the factor of the second row.
template <typename Traits>
__device__ __forceinline__ void FinishRows(const AttentionKernelParams& p,
                                           const PreparedUnit<Traits>& prepared,
                                           const OnlineSoftmax<Traits>& softmax,
                                           float (&factor)[2]) {
  const int lane = threadIdx.x % 32;
  const float sum[2] = {QuadSum(softmax.sum[0]), QuadSum(softmax.sum[1])};
  const bool is_odd = lane % 2;
  const ResultRow result = ResultRowAt(prepared, is_odd);
  const RowTotal total = {is_odd ? softmax.max[1] : softmax.max[0], is_odd ? sum[1] : sum[0]};
  const float own = result.is_there ? FinishRow(p, prepared.unit, result.row, total) : 0.0f;
  factor[0] = __shfl_sync(kFullWarp, own, lane & ~1);
  factor[1] = __shfl_sync(kFullWarp, own, lane | 1);
}

// Writes out and lse. Runs once per unit, so it is optimised for latency: independent operations
// are adjacent, and the common case has few branches.
// 1. The lanes compute the factors of their rows.
// 2. Barrier of the warpgroup: no warp of it reads the unit's queries `q` any more.
// 3. Each warp collects its rows of out in the memory of `q`, and then writes whole rows to out.
template <typename Traits>
__device__ __forceinline__ void WriteOut(const AttentionKernelParams& p,
                                         const PreparedUnit<Traits>& prepared,
                                         const OnlineSoftmax<Traits>& softmax, uint4* q) {
  const int lane = threadIdx.x % 32;
  float factor[2];
  FinishRows(p, prepared, softmax, factor);
  NamedBarrierSync(Traits::kResultBarriers + threadIdx.x / 128, 128);
  const int store_row = WarpRow<Traits>() + lane % 16;
#pragma unroll
  for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
    const auto& even = softmax.out[2 * i];
    const auto& odd = softmax.out[2 * i + 1];
    StoreMatrices(SharedAddress(&q[Traits::ChunkAt(store_row, 2 * i + lane / 16)]),
                  {PackOut<Traits>(p, even[0] * factor[0], even[1] * factor[0]),
                   PackOut<Traits>(p, even[2] * factor[1], even[3] * factor[1]),
                   PackOut<Traits>(p, odd[0] * factor[0], odd[1] * factor[0]),
                   PackOut<Traits>(p, odd[2] * factor[1], odd[3] * factor[1])});
  }
  __syncwarp();

  constexpr int kRowsAtOnce = 32 / Traits::kValueChunks;
  constexpr int kPasses = 16 / kRowsAtOnce;
  const int first_row = WarpRow<Traits>() + lane / Traits::kValueChunks;
  const int chunk = lane % Traits::kValueChunks;
  const int column = chunk * Traits::kChunk;
  uint4 values[kPasses];
  uint16_t* out[kPasses];
  bool is_there[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = first_row + i * kRowsAtOnce;
    const PreparedRow& place = prepared.rows[row];
    values[i] = q[Traits::ChunkAt(row, chunk)];
    is_there[i] = place.token >= 0 && column < p.head_dim_v;
    out[i] = static_cast<uint16_t*>(p.out) + OutAt(p, {0, place.token, place.q_head}) + column;
  }
  const bool is_wide = p.head_dim_v % Traits::kChunk == 0 &&
                       reinterpret_cast<uintptr_t>(p.out) % 16 == 0 &&
                       (p.out_token_stride | p.out_head_stride) % Traits::kChunk == 0;
  if (is_wide) {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) StoreGlobal16(out[i], values[i], is_there[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    if (!is_there[i]) continue;
    *reinterpret_cast<uint2*>(out[i]) = {values[i].x, values[i].y};
    if (column + 4 < p.head_dim_v) {
      *reinterpret_cast<uint2*>(out[i] + 4) = {values[i].z, values[i].w};
    }
  }
}

// Writes the unit's partial: out, normalised by its sum of weights, and lse in base 2.
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

// Combines the partials of the unit's queries, in one level, and writes out and lse. Adds in key
// order, which does not depend on the order of arrival.
template <typename Traits>
__device__ __forceinline__ void CombineRows(const AttentionKernelParams& p,
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

// Writes the results of unit n, and combines them with other splits if this CTA is the last to
// arrive. Called by all consumer threads.
template <typename Traits>
__device__ __forceinline__ void FinishWarpgroupUnit(const AttentionKernelParams& p,
                                                    PreparedUnit<Traits>& prepared,
                                                    const OnlineSoftmax<Traits>& softmax,
                                                    WarpgroupShared<Traits>& shared, int n) {
  WorkUnit& unit = prepared.unit;
  if (!Traits::kOnlyPlain && !prepared.writes_directly) {
    FinishThroughShared<Traits>(p, unit, softmax, shared.attention);
    shared.results_are_out.Arrive();
    return;
  }
  if (unit.item.partial < 0) return WriteOut<Traits>(p, prepared, softmax, shared.q(n));
  WritePartial<Traits>(p, prepared, softmax);
  if (ArriveAtCombine<Traits>(p, unit, shared.attention.is_last_arrival)) {
    CombineRows<Traits>(p, prepared);
    Traits::Sync();  // the next unit may overwrite these partials
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_RESULTS_CUH_
