// The register epilogue of the absorbed MLA kernel: writes accumulators to out and lse, or to a
// partial, and combines partials. Two things differ from warpgroup_results.cuh. The columns of a
// row are in two warps. The partials of a tile's split have 128 KB, so several CTAs combine a large
// number of splits in two levels.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_RESULTS_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/partial_combine.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/unit_results.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_results.cuh"
#include "reprise/attention/cuda/mla/mla_shared.cuh"

namespace reprise {

// A lane's accumulators of its two rows, in the register layout of the MMA: 16 times 8 columns at a
// time.
template <typename Traits>
using MlaSums = float[Traits::kOutTiles / 16][16][4];

// The first column of out of this warpgroup.
template <typename Traits>
__device__ __forceinline__ int FirstOwnColumn() {
  return threadIdx.x / Traits::kGroupThreads * Traits::kOutColumns;
}

// The softmax total of one of the lane's rows.
template <typename Traits>
__device__ __forceinline__ RowTotal TotalOf(const MlaUnit<Traits>& unit, int r) {
  const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8;
  if (unit.prepared.num_steps == 0) return {-INFINITY, 0.0f};
  return {unit.max[row], unit.sum[row]};
}

// Writes out and lse.
template <typename Traits>
__device__ __forceinline__ void WriteMlaOut(const AttentionKernelParams& p,
                                            const MlaUnit<Traits>& unit,
                                            const MlaSums<Traits>& sums) {
  using Element = typename Traits::Element;
  const bool is_odd = threadIdx.x % 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt<Traits>(unit.prepared, r);
    float factor = 0.0f;
    if (result.is_there) factor = FinishRow(p, unit.prepared.unit, result.row, TotalOf(unit, r));
    Element* const out = static_cast<Element*>(p.out) + OutAt(p, result.row);
#pragma unroll
    for (int i = 0; i < Traits::kOutTiles / 2; ++i) {
      // Adjacent lanes exchange halves, so that each lane stores four adjacent columns.
      const uint32_t even = Pack<Element>(sums[i / 8][i % 8 * 2][r * 2] * factor,
                                          sums[i / 8][i % 8 * 2][r * 2 + 1] * factor);
      const uint32_t odd = Pack<Element>(sums[i / 8][i % 8 * 2 + 1][r * 2] * factor,
                                         sums[i / 8][i % 8 * 2 + 1][r * 2 + 1] * factor);
      const uint32_t other = __shfl_xor_sync(kFullWarp, is_odd ? even : odd, 1);
      const uint2 four = is_odd ? uint2{other, odd} : uint2{even, other};
      const int column = FirstOwnColumn<Traits>() + QuadColumn(i);
      if (result.is_there && column < p.head_dim_v) *reinterpret_cast<uint2*>(out + column) = four;
    }
  }
}

// Writes the unit's partial: out, normalised by its sum of weights, and lse in base 2.
template <typename Traits>
__device__ __forceinline__ void WriteMlaPartial(const AttentionKernelParams& p,
                                                const MlaUnit<Traits>& unit,
                                                const MlaSums<Traits>& sums) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const ResultRow result = ResultRowAt<Traits>(unit.prepared, r);
    if (!result.is_there) continue;
    const int64_t partial = PartialAt(p.work, unit.prepared.unit.item.partial, result.row);
    float lse;
    const float factor = FinishPartialRow<Traits>(TotalOf(unit, r), lse);
    if (threadIdx.x % 4 == 0) p.work.partial_lse[partial] = lse;
    float* const out = p.work.partial_out + partial * p.head_dim_v;
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      const int column = FirstOwnColumn<Traits>() + n * 8 + threadIdx.x % 4 * 2;
      if (column >= p.head_dim_v) continue;
      *reinterpret_cast<float2*>(out + column) = {sums[n / 16][n % 16][r * 2] * factor,
                                                  sums[n / 16][n % 16][r * 2 + 1] * factor};
    }
  }
}

constexpr int kMlaSplitsInFlight = 4;

// A row's sum over splits, and its columns in a lane: 4 of each 128.
template <typename Traits>
struct MlaRowSum {
  static constexpr int kParts = Traits::kHeadDimV / 128;
  RowTotal total = {-INFINITY, 0.0f};
  float columns[kParts][4] = {};

  // Makes the sum relative to `reference`, a finite maximum of logits.
  __device__ __forceinline__ void Rescale(float reference) {
    const float factor = Exp2<Traits>(total.max - reference);
    total.sum *= factor;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int e = 0; e < 4; ++e) columns[part][e] *= factor;
    }
  }
};

// Adds the next kMlaSplitsInFlight splits of a row to `sum`: split first + i has the weight of lane
// first + i. `out` is the address of the lane's first column in split `first`, and `pitch` the
// distance of splits. All loads are in flight at once: their latency is the cost of a combine.
// Splits `count` and later do not exist; their weights are 0.
template <typename Traits>
__device__ __forceinline__ void AddMlaSplits(const float* out, int64_t pitch, int head_dim_v,
                                             float own_weight, int first, int count,
                                             MlaRowSum<Traits>& sum) {
  constexpr int kParts = MlaRowSum<Traits>::kParts;
  float4 values[kMlaSplitsInFlight][kParts];
#pragma unroll
  for (int i = 0; i < kMlaSplitsInFlight; ++i) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const bool is_there =
          first + i < count && part * 128 + static_cast<int>(threadIdx.x) % 32 * 4 < head_dim_v;
      values[i][part] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (is_there) {
        values[i][part] = __ldcg(reinterpret_cast<const float4*>(out + i * pitch + part * 128));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMlaSplitsInFlight; ++i) {
    const float weight = __shfl_sync(kFullWarp, own_weight, first + i);
    sum.total.sum += weight;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float(&columns)[4] = sum.columns[part];
      columns[0] = fmaf(weight, values[i][part].x, columns[0]);
      columns[1] = fmaf(weight, values[i][part].y, columns[1]);
      columns[2] = fmaf(weight, values[i][part].z, columns[2]);
      columns[3] = fmaf(weight, values[i][part].w, columns[3]);
    }
  }
}

// Combines the partials of `point`, in key order, which does not depend on the order of arrival.
// Each warp has one row at a time. REQUIRES: no shared partials. Called by all threads of the
// accumulation warpgroups.
template <typename Traits>
__device__ __forceinline__ void CombineMlaRows(const AttentionKernelParams& p, const WorkUnit& unit,
                                               const CombinePoint& point) {
  using Element = typename Traits::Element;
  constexpr int kWarps = Traits::kThreads / 32;
  const int lane = threadIdx.x % 32;
  const PartialList& list = point.own;
  const int64_t pitch = list.stride * p.head_dim_v;
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < unit.num_rows; r += kWarps) {
    const TileRow row = RowAt(p, unit, r);
    const int64_t first = PartialAt(p.work, list.first, row);
    const float* lse = p.work.partial_lse + first;
    const float* out = p.work.partial_out + first * p.head_dim_v + lane * 4;
    MlaRowSum<Traits> sum;
#pragma unroll 1
    for (int begin = 0; begin < list.count; begin += 32) {
      const int count = min(32, list.count - begin);
      const float own_lse = lane < count ? __ldcg(lse + (begin + lane) * list.stride) : -INFINITY;
      float max = fmaxf(own_lse, sum.total.max);
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, distance));
      }
      const float reference = Reference(max);
      sum.Rescale(reference);
      sum.total.max = max;
      const float own_weight = Exp2<Traits>(own_lse - reference);
#pragma unroll 1
      for (int i = 0; i < count; i += kMlaSplitsInFlight) {
        AddMlaSplits<Traits>(out, pitch, p.head_dim_v, own_weight, i, count, sum);
        out += kMlaSplitsInFlight * pitch;
      }
    }
    float lse_of_sum = 0.0f;
    const float factor = point.to < 0 ? FinishRow(p, unit, row, sum.total)
                                      : FinishPartialRow<Traits>(sum.total, lse_of_sum);
    __syncwarp();  // all lanes have read the partial that the sum overwrites
    const int64_t partial = PartialAt(p.work, point.to, row);
    if (point.to >= 0 && lane == 0) p.work.partial_lse[partial] = lse_of_sum;
#pragma unroll
    for (int part = 0; part < MlaRowSum<Traits>::kParts; ++part) {
      const int column = part * 128 + lane * 4;
      if (column >= p.head_dim_v) continue;
      const float(&columns)[4] = sum.columns[part];
      const float value[4] = {columns[0] * factor, columns[1] * factor, columns[2] * factor,
                              columns[3] * factor};
      if (point.to >= 0) {
        StorePartial(p, partial, column, value);
      } else {
        *reinterpret_cast<uint2*>(static_cast<Element*>(p.out) + OutAt(p, row) + column) = {
            Pack<Element>(value[0], value[1]), Pack<Element>(value[2], value[3])};
      }
    }
  }
}

// FinishThroughShared() of attention_kernel.cuh, for the accumulators of this kernel.
template <typename Traits>
__device__ __forceinline__ void FinishMlaThroughShared(const AttentionKernelParams& p,
                                                       MlaUnit<Traits>& unit,
                                                       const MlaSums<Traits>& sums,
                                                       AttentionShared<Traits>& shared) {
  WorkUnit& work = unit.prepared.unit;
  Traits::Sync();  // the results reuse the memory of the keys
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4 + r * 8;
    const RowTotal total = TotalOf(unit, r);
    // Both warpgroups write the same values.
    shared.results.max[0][row] = total.max;
    shared.results.sum[0][row] = total.sum;
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      const int column = FirstOwnColumn<Traits>() + n * 8 + threadIdx.x % 4 * 2;
      *reinterpret_cast<float2*>(&shared.results.out[0][row][column]) = {
          sums[n / 16][n % 16][r * 2], sums[n / 16][n % 16][r * 2 + 1]};
    }
  }
  Traits::Sync();
  WriteUnit<Traits>(p, work, shared.results);
  if (work.item.partial >= 0) ArriveAndCombine<Traits>(p, work, shared);
}

// Writes the results of a unit, and combines them with other splits if this CTA is the last to
// arrive. Called by all threads of the accumulation warpgroups.
// `num_indirect`: number of earlier units that do not use the register epilogue.
template <typename Traits>
__device__ __forceinline__ void FinishMlaUnit(const AttentionKernelParams& p, MlaUnit<Traits>& unit,
                                              const MlaSums<Traits>& sums,
                                              MlaShared<Traits>& shared, int num_indirect) {
  const WorkUnit& work = unit.prepared.unit;
  if (!unit.prepared.writes_directly) {
    FinishMlaThroughShared<Traits>(p, unit, sums, shared.attention);
    shared.results_are_out[num_indirect % 2].Arrive();
    return;
  }
  if (work.item.partial < 0) return WriteMlaOut<Traits>(p, unit, sums);
  WriteMlaPartial<Traits>(p, unit, sums);
  bool in_group = work.item.num_partials > kMaxSplitsAtOnce;
#pragma unroll 1
  for (;;) {
    const CombinePoint point = in_group ? GroupCombine(p, work) : WholeCombine(p, work);
    if (!IsLastArrival<Traits>(point.arrivals, point.num_arrivals,
                               shared.attention.is_last_arrival)) {
      return;
    }
    CombineMlaRows<Traits>(p, work, point);
    Traits::Sync();  // the next unit may overwrite these partials
    if (!in_group) return;
    in_group = false;
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_RESULTS_CUH_
