// From the shares of a CTA's groups of warps to out and lse: added up, and either written out, or
// left as a partial which the last CTA to arrive at the merge adds to its siblings.
//
// A warp a row of the tile; its lanes hold 4 columns each, 128 at a time.

#ifndef ATTENTION_KERNELS_UNIT_RESULTS_CUH_
#define ATTENTION_KERNELS_UNIT_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/online_softmax.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/work_unit.cuh"
#include "attention/work_map.h"

namespace reprise {

// Softmax state of a row: sum of exp2(logit - max), base 2.
struct RowTotal {
  float max;
  float sum;
};

__device__ __forceinline__ void StoreOut(const AttentionKernelParams& p, float* out, int column,
                                         const float (&value)[4]) {
  if (p.out_is_aligned) {
    *reinterpret_cast<float4*>(out + column) = {value[0], value[1], value[2], value[3]};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (column + e < p.head_dim_v) out[column + e] = value[e];
  }
}

template <typename Element>
__device__ __forceinline__ void StoreOut(const AttentionKernelParams& p, Element* out, int column,
                                         const float (&value)[4]) {
  if (p.out_is_aligned) {
    *reinterpret_cast<uint2*>(out + column) = {Pack<Element>(value[0], value[1]),
                                               Pack<Element>(value[2], value[3])};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (column + e < p.head_dim_v) out[column + e] = FromFloat<Element>(value[e]);
  }
}

// Writes 4 columns of out.
template <typename Traits>
__device__ __forceinline__ void StoreColumns(const AttentionKernelParams& p, const TileRow& row,
                                             int column, const float (&value)[4]) {
  const int64_t at = row.token * p.out_token_stride + row.q_head * p.out_head_stride;
  if (p.out_is_float) {
    StoreOut(p, static_cast<float*>(p.out) + at, column, value);
  } else {
    StoreOut(p, static_cast<typename Traits::Element*>(p.out) + at, column, value);
  }
}

// Adds the sink, writes lse, and returns what a sum relative to total.max is to be multiplied with.
__device__ __forceinline__ float FinishRow(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const TileRow& row, const RowTotal& total) {
  float factor = 0.0f;
  float lse = -INFINITY;
  if (total.max != -INFINITY) {
    const float sink = p.sinks ? p.sinks[row.q_head] * kLog2E : -INFINITY;
    const float max = fmaxf(total.max, sink);
    const float rescale = exp2f(total.max - max);
    const float sum = total.sum * rescale + exp2f(sink - max);
    factor = unit.v_scale * rescale / sum;
    lse = (max + log2f(sum)) * kLn2;
  }
  if (p.lse && threadIdx.x % 32 == 0) {
    p.lse[row.token * p.lse_token_stride + row.q_head * p.lse_head_stride] = lse;
  }
  return factor;
}

// Row `row` of the tile over all groups.
template <typename Traits>
class GroupSums {
 public:
  using Results = typename AttentionShared<Traits>::Results;

  __device__ __forceinline__ GroupSums(const Results& results, int row)
      : results_(results), row_(row) {
    total_.max = -INFINITY;
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) total_.max = fmaxf(total_.max, results.max[g][row]);
    const float reference = Reference(total_.max);
    total_.sum = 0.0f;
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) {
      weight_[g] = exp2f(results.max[g][row] - reference);
      total_.sum += results.sum[g][row] * weight_[g];
    }
  }

  __device__ __forceinline__ const RowTotal& total() const { return total_; }

  // 4 columns, relative to total().max, times `factor`.
  __device__ __forceinline__ void Columns(int column, float factor, float (&value)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) value[e] = 0.0f;
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) {
      const float4 out = *reinterpret_cast<const float4*>(&results_.out[g][row_][column]);
      value[0] = fmaf(out.x, weight_[g], value[0]);
      value[1] = fmaf(out.y, weight_[g], value[1]);
      value[2] = fmaf(out.z, weight_[g], value[2]);
      value[3] = fmaf(out.w, weight_[g], value[3]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) value[e] *= factor;
  }

 private:
  const Results& results_;
  int row_;
  RowTotal total_;
  float weight_[Traits::kWarpsN];
};

// Index of a row's lse among the partials; times head_dim_v, that of its out.
__device__ __forceinline__ int64_t PartialAt(const WorkMap& work, int partial, const TileRow& row) {
  return (static_cast<int64_t>(partial) * work.tile_queries + row.query) * work.num_q_heads +
         row.q_head;
}

template <typename Traits>
__device__ __forceinline__ void WriteOut(const AttentionKernelParams& p, const WorkUnit& unit,
                                         const typename AttentionShared<Traits>::Results& results) {
  for (int r = threadIdx.x / 32; r < unit.num_rows; r += Traits::kWarps) {
    const TileRow row = RowAt(p, unit, r);
    const GroupSums<Traits> sums(results, r);
    const float factor = FinishRow(p, unit, row, sums.total());
    for (int column = threadIdx.x % 32 * 4; column < p.head_dim_v; column += 128) {
      float value[4];
      sums.Columns(column, factor, value);
      StoreColumns<Traits>(p, row, column, value);
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void WritePartial(
    const AttentionKernelParams& p, const WorkUnit& unit,
    const typename AttentionShared<Traits>::Results& results) {
  for (int r = threadIdx.x / 32; r < unit.num_rows; r += Traits::kWarps) {
    const TileRow row = RowAt(p, unit, r);
    const GroupSums<Traits> sums(results, r);
    const RowTotal& total = sums.total();
    const int64_t at = PartialAt(p.work, unit.item.partial, row);
    if (threadIdx.x % 32 == 0) {
      p.work.partial_lse[at] = total.max == -INFINITY ? -INFINITY : total.max + log2f(total.sum);
    }
    const float factor = total.max == -INFINITY ? 0.0f : 1.0f / total.sum;
    float* out = p.work.partial_out + at * p.head_dim_v;
    for (int column = threadIdx.x % 32 * 4; column < p.head_dim_v; column += 128) {
      float value[4];
      sums.Columns(column, factor, value);
      if (p.head_dim_v % 4 == 0) {
        *reinterpret_cast<float4*>(out + column) = {value[0], value[1], value[2], value[3]};
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (column + e < p.head_dim_v) out[column + e] = value[e];
        }
      }
    }
  }
}

// Past the L1 cache, which does not see what other SMs write.
__device__ __forceinline__ void LoadPartial(const float* out, int column, int head_dim,
                                            float (&value)[4]) {
  if (head_dim % 4 == 0) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(out + column));
    value[0] = four.x;
    value[1] = four.y;
    value[2] = four.z;
    value[3] = four.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) value[e] = column + e < head_dim ? __ldcg(out + column + e) : 0.0f;
  }
}

// Adds up the partials of a merge, in key order whoever arrived last: the bits do not depend on
// timing.
template <typename Traits>
__device__ __forceinline__ void MergePartials(const AttentionKernelParams& p, const WorkUnit& unit,
                                              const WorkMerge& merge) {
  const int lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32; r < unit.num_rows; r += Traits::kWarps) {
    const TileRow row = RowAt(p, unit, r);
    const int64_t first = PartialAt(p.work, merge.first_partial, row);
    const int64_t stride = static_cast<int64_t>(p.work.tile_queries) * p.work.num_q_heads;
    const float* const lse = p.work.partial_lse + first;
    RowTotal total{-INFINITY, 0.0f};
    for (int i = lane; i < merge.num_partials; i += 32) {
      total.max = fmaxf(total.max, __ldcg(lse + i * stride));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      total.max = fmaxf(total.max, __shfl_xor_sync(kFullWarp, total.max, distance));
    }
    const float reference = Reference(total.max);
    for (int i = lane; i < merge.num_partials; i += 32) {
      total.sum += exp2f(__ldcg(lse + i * stride) - reference);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      total.sum += __shfl_xor_sync(kFullWarp, total.sum, distance);
    }
    const float factor = FinishRow(p, unit, row, total);

    const float* const out = p.work.partial_out + first * p.head_dim_v;
    for (int columns = 0; columns < p.head_dim_v; columns += 128) {
      const int column = columns + lane * 4;
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int begin = 0; begin < merge.num_partials; begin += 32) {
        const int count = min(32, merge.num_partials - begin);
        const float weight =
            lane < count ? exp2f(__ldcg(lse + (begin + lane) * stride) - reference) : 0.0f;
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
          const float weight_i = __shfl_sync(kFullWarp, weight, i);
          if (column >= p.head_dim_v) continue;
          float value[4];
          LoadPartial(out + (begin + i) * stride * p.head_dim_v, column, p.head_dim_v, value);
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[e] = fmaf(weight_i, value[e], sum[e]);
        }
      }
      if (column >= p.head_dim_v) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[e] *= factor;
      StoreColumns<Traits>(p, row, column, sum);
    }
  }
}

// Writes what the CTA found. The threads have met after writing `shared.results`, and meet after it
// before they write shared memory again.
template <typename Traits>
__device__ __forceinline__ void FinishUnit(const AttentionKernelParams& p, const WorkUnit& unit,
                                           AttentionShared<Traits>& shared) {
  if (unit.item.partial < 0) {
    WriteOut<Traits>(p, unit, shared.results);
    return;
  }
  WritePartial<Traits>(p, unit, shared.results);
  const WorkMerge merge = p.work.merges[unit.item.merge];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    // Wraps to 0 at the last arrival, ready for the next layer.
    uint32_t* arrivals =
        p.work.arrivals + unit.item.merge * p.work.num_virtual_heads + unit.virtual_head;
    const uint32_t last = merge.num_partials - 1;
    shared.is_last_arrival = atomicInc(arrivals, last) == last;
  }
  __syncthreads();
  if (shared.is_last_arrival) {
    __threadfence();
    MergePartials<Traits>(p, unit, merge);
  }
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_UNIT_RESULTS_CUH_
