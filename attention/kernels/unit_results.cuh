// From the shares of a CTA's groups of warps to out and lse: added up, and either written out, or
// left as a partial which the last CTA to arrive at the merge adds to its siblings.
//
// Twice the same two passes: a thread (or a few) a row finds by how much each share of the row is
// to be weighted; then all threads take 4 columns of a row at a time.

#ifndef ATTENTION_KERNELS_UNIT_RESULTS_CUH_
#define ATTENTION_KERNELS_UNIT_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/convert.cuh"
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

// Types of 16 and 8 bits.
template <typename T>
__device__ __forceinline__ void StoreOut(const AttentionKernelParams& p, T* out, int column,
                                         const float (&value)[4]) {
  uint32_t bits[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) bits[e] = StoredBits<T>(value[e]);
  if (!p.out_is_aligned) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (column + e >= p.head_dim_v) continue;
      if constexpr (sizeof(T) == 2) {
        reinterpret_cast<uint16_t*>(out)[column + e] = static_cast<uint16_t>(bits[e]);
      } else {
        reinterpret_cast<uint8_t*>(out)[column + e] = static_cast<uint8_t>(bits[e]);
      }
    }
  } else if constexpr (sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(out + column) = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
  } else {
    *reinterpret_cast<uint32_t*>(out + column) =
        bits[0] | bits[1] << 8 | bits[2] << 16 | bits[3] << 24;
  }
}

__device__ __forceinline__ int64_t OutAt(const AttentionKernelParams& p, const TileRow& row) {
  return row.token * p.out_token_stride + row.q_head * p.out_head_stride;
}

// Writes 4 columns of the row of out that begins at element `at`.
template <typename Traits>
__device__ __forceinline__ void StoreColumns(const AttentionKernelParams& p, int64_t at, int column,
                                             const float (&value)[4]) {
  if (p.out_dtype == Traits::kTile.dtype) {
    StoreOut(p, static_cast<typename Traits::Element*>(p.out) + at, column, value);
    return;
  }
  switch (p.out_dtype) {
    case DType::kFloat16:
      return StoreOut(p, static_cast<__half*>(p.out) + at, column, value);
    case DType::kBFloat16:
      return StoreOut(p, static_cast<__nv_bfloat16*>(p.out) + at, column, value);
    case DType::kFp8E4M3:
      return StoreOut(p, static_cast<__nv_fp8_e4m3*>(p.out) + at, column, value);
    case DType::kFp8E5M2:
      return StoreOut(p, static_cast<__nv_fp8_e5m2*>(p.out) + at, column, value);
    default:
      return StoreOut(p, static_cast<float*>(p.out) + at, column, value);
  }
}

// A scale of its own for each out_block columns of a row: what makes their largest value that of
// out's type. At least that of 1e-10, so that zeros have a finite one.
__device__ __forceinline__ float BlockScale(const AttentionKernelParams& p, float largest) {
  return fmaxf(largest, 1e-10f) / LargestOf(p.out_dtype);
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
    factor = unit.v_scale * rescale / (sum * ScaleAt(p.out_scale, 0, 0));
    lse = (max + log2f(sum)) * kLn2;
  }
  if (p.lse) p.lse[row.token * p.lse_token_stride + row.q_head * p.lse_head_stride] = lse;
  return factor;
}

// Index of a row's lse among the partials; times head_dim_v, that of its out.
__device__ __forceinline__ int64_t PartialAt(const TileMap& work, int partial, const TileRow& row) {
  return static_cast<int64_t>(partial + row.query) * work.num_q_heads + row.q_head;
}

// Calls body(row, column) for 4 columns at a time of every row of the tile, spread over the CTA.
template <typename Traits, typename Body>
__device__ __forceinline__ void ForColumns(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const Body& body) {
  const int row_parts = (p.head_dim_v + 3) / 4;
  const int row_step = Traits::kThreads / row_parts;
  const int part_step = Traits::kThreads - row_step * row_parts;
  int row = threadIdx.x / row_parts;
  int part = threadIdx.x - row * row_parts;
  while (row < unit.num_rows) {
    body(row, part * 4);
    row += row_step;
    part += part_step;
    if (part >= row_parts) {
      part -= row_parts;
      ++row;
    }
  }
}

// Finds the weights of the groups' shares of each row, and writes lse or the partial's.
template <typename Traits>
__device__ __forceinline__ void WeighGroups(const AttentionKernelParams& p, const WorkUnit& unit,
                                            typename AttentionShared<Traits>::Results& results) {
  for (int r = threadIdx.x; r < unit.num_rows; r += Traits::kThreads) {
    RowTotal total{-INFINITY, 0.0f};
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) total.max = fmaxf(total.max, results.max[g][r]);
    const float reference = Reference(total.max);
    float weight[Traits::kWarpsN];
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) {
      weight[g] = exp2f(results.max[g][r] - reference);
      total.sum += results.sum[g][r] * weight[g];
    }
    const TileRow row = RowAt(p, unit, r);
    const int64_t partial = PartialAt(p.work, unit.item.partial, row);
    results.places[r] = {OutAt(p, row), partial};
    float factor = 0.0f;
    if (unit.item.partial < 0) {
      factor = FinishRow(p, unit, row, total);
    } else {
      float lse = -INFINITY;
      if (total.max != -INFINITY) {
        lse = total.max + log2f(total.sum);
        factor = 1.0f / total.sum;
      }
      p.work.partial_lse[partial] = lse;
    }
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) results.weight[g][r] = weight[g] * factor;
  }
}

template <typename Traits>
__device__ __forceinline__ void AddGroups(const typename AttentionShared<Traits>::Results& results,
                                          int row, int column, float (&value)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) value[e] = 0.0f;
#pragma unroll
  for (int g = 0; g < Traits::kWarpsN; ++g) {
    const float4 out = *reinterpret_cast<const float4*>(&results.out[g][row][column]);
    const float weight = results.weight[g][row];
    value[0] = fmaf(out.x, weight, value[0]);
    value[1] = fmaf(out.y, weight, value[1]);
    value[2] = fmaf(out.z, weight, value[2]);
    value[3] = fmaf(out.w, weight, value[3]);
  }
}

__device__ __forceinline__ void StorePartial(float* out, int column, int head_dim,
                                             const float (&value)[4]) {
  if (head_dim % 4 == 0) {
    *reinterpret_cast<float4*>(out + column) = {value[0], value[1], value[2], value[3]};
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (column + e < head_dim) out[column + e] = value[e];
  }
}

// Past the L1 cache, which does not see what other SMs write.
template <bool kAligned>
__device__ __forceinline__ float4 LoadPartial(const float* out, int column, int head_dim) {
  if constexpr (kAligned) {
    return __ldcg(reinterpret_cast<const float4*>(out + column));
  } else {
    float value[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) value[e] = column + e < head_dim ? __ldcg(out + column + e) : 0.0f;
    return {value[0], value[1], value[2], value[3]};
  }
}

// The sum of `count` partials of a row, each weighted by exp2(lse - reference); out and lse are
// those of the first; `stride` is from one lse to the next.
template <bool kAligned>
__device__ __forceinline__ void AddPartials(const AttentionKernelParams& p, const float* out,
                                            const float* lse, int64_t stride, float reference,
                                            int count, int column, float (&sum)[4]) {
  // Loads under way at a time: the partials are as far as the L2 cache.
  constexpr int kBatch = 8;
  for (int begin = 0; begin < count; begin += kBatch) {
    float lses[kBatch];
    float4 values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = min(begin + i, count - 1) * stride;
      lses[i] = __ldcg(lse + at);
      values[i] = LoadPartial<kAligned>(out + at * p.head_dim_v, column, p.head_dim_v);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float weight = begin + i < count ? exp2f(lses[i] - reference) : 0.0f;
      sum[0] = fmaf(weight, values[i].x, sum[0]);
      sum[1] = fmaf(weight, values[i].y, sum[1]);
      sum[2] = fmaf(weight, values[i].z, sum[2]);
      sum[3] = fmaf(weight, values[i].w, sum[3]);
    }
  }
}

// Partials of a tile's rows, in key order: the n-th of a row is PartialAt(first, row) + n * stride.
struct PartialList {
  int first;
  int count;
  int64_t stride;
};

// What is merged for the queries of an item: the shared ones first.
__device__ __forceinline__ PartialList SharedPartials(const TileMap& work, const WorkItem& item) {
  return {item.first_shared_partial, item.num_shared_partials,
          static_cast<int64_t>(work.tile_queries) * work.num_q_heads};
}
__device__ __forceinline__ PartialList OwnPartials(const TileMap& work, const WorkItem& item) {
  return {item.first_partial, item.num_partials,
          static_cast<int64_t>(item.query_end - item.query_begin) * work.num_q_heads};
}

__device__ __forceinline__ void AddTotal(RowTotal& total, float max, float sum) {
  const float new_max = fmaxf(total.max, max);
  const float reference = Reference(new_max);
  total.sum = total.sum * exp2f(total.max - reference) + sum * exp2f(max - reference);
  total.max = new_max;
}

// Leaves in results.max and results.weight of group 0, for each row, what its partials' lse are
// relative to, and what their sum is to be multiplied with. Writes lse.
template <typename Traits>
__device__ __forceinline__ void WeighPartials(const AttentionKernelParams& p, const WorkUnit& unit,
                                              typename AttentionShared<Traits>::Results& results) {
  // Threads of a row.
  constexpr int kLanes =
      Traits::kThreads / Traits::kRows < 32 ? Traits::kThreads / Traits::kRows : 32;
  static_assert(kLanes >= 1 && 32 % kLanes == 0);
  const int r = threadIdx.x / kLanes;
  const bool is_row = r < unit.num_rows;
  const TileRow row = RowAt(p, unit, is_row ? r : 0);
  RowTotal total{-INFINITY, 0.0f};
  const auto add = [&](const PartialList& list) {
    const float* lse = p.work.partial_lse + PartialAt(p.work, list.first, row);
#pragma unroll 4
    for (int i = threadIdx.x % kLanes; i < list.count; i += kLanes) {
      AddTotal(total, __ldcg(lse + i * list.stride), 1.0f);
    }
  };
  if (unit.item.num_shared_partials > 0) add(SharedPartials(p.work, unit.item));
  add(OwnPartials(p.work, unit.item));
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const float max = __shfl_xor_sync(kFullWarp, total.max, distance);
    const float sum = __shfl_xor_sync(kFullWarp, total.sum, distance);
    AddTotal(total, max, sum);
  }
  if (is_row && threadIdx.x % kLanes == 0) {
    results.max[0][r] = Reference(total.max);
    results.weight[0][r] = FinishRow(p, unit, row, total);
    results.places[r] = {OutAt(p, row), PartialAt(p.work, unit.item.first_partial, row)};
  }
}

// Puts 4 columns of a finished row where they belong: out, or, where blocks of columns have a scale
// of their own, back into group 0's share, for StoreBlocks().
template <typename Traits>
__device__ __forceinline__ void StoreFinished(const AttentionKernelParams& p,
                                              typename AttentionShared<Traits>::Results& results,
                                              int row, int column, const float (&value)[4]) {
  if (p.out_block_scales == nullptr) {
    StoreColumns<Traits>(p, results.places[row].out, column, value);
  } else {
    *reinterpret_cast<float4*>(&results.out[0][row][column]) = {value[0], value[1], value[2],
                                                                value[3]};
  }
}

// A thread a block of columns.
template <typename Traits>
__device__ __noinline__ void StoreBlocks(const AttentionKernelParams& p, const WorkUnit& unit,
                                         const typename AttentionShared<Traits>::Results& results) {
  const int row_blocks = p.head_dim_v / p.out_block;
  for (int at = threadIdx.x; at < unit.num_rows * row_blocks; at += Traits::kThreads) {
    const int r = at / row_blocks;
    const int block = at - r * row_blocks;
    const float* columns = results.out[0][r];
    float largest = 0.0f;
    for (int c = block * p.out_block; c < (block + 1) * p.out_block; ++c) {
      largest = fmaxf(largest, fabsf(columns[c]));
    }
    const float scale = BlockScale(p, largest);
    const TileRow row = RowAt(p, unit, r);
    p.out_block_scales[row.token * p.out_block_token_stride + row.q_head * p.out_block_head_stride +
                       block] = scale;
    const float factor = 1.0f / scale;
    for (int c = block * p.out_block; c < (block + 1) * p.out_block; c += 4) {
      const float value[4] = {columns[c] * factor, columns[c + 1] * factor, columns[c + 2] * factor,
                              columns[c + 3] * factor};
      StoreColumns<Traits>(p, results.places[r].out, c, value);
    }
  }
}

// Adds up the partials of a merge, in key order whoever arrived last: the bits do not depend on
// timing.
template <typename Traits>
__device__ __forceinline__ void MergePartials(const AttentionKernelParams& p, const WorkUnit& unit,
                                              typename AttentionShared<Traits>::Results& results) {
  WeighPartials<Traits>(p, unit, results);
  Traits::Meet();
  ForColumns<Traits>(p, unit, [&](int r, int column) {
    const float reference = results.max[0][r];
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const auto add = [&](int64_t first, const PartialList& list) {
      const float* lse = p.work.partial_lse + first;
      const float* out = p.work.partial_out + first * p.head_dim_v;
      if (p.head_dim_v % 4 == 0) {
        AddPartials<true>(p, out, lse, list.stride, reference, list.count, column, sum);
      } else {
        AddPartials<false>(p, out, lse, list.stride, reference, list.count, column, sum);
      }
    };
    if (unit.item.num_shared_partials > 0) {
      add(PartialAt(p.work, unit.item.first_shared_partial, RowAt(p, unit, r)),
          SharedPartials(p.work, unit.item));
    }
    add(results.places[r].partial, OwnPartials(p.work, unit.item));
    const float factor = results.weight[0][r];
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] *= factor;
    StoreFinished<Traits>(p, results, r, column, sum);
  });
  if (p.out_block_scales == nullptr) return;
  Traits::Meet();
  StoreBlocks<Traits>(p, unit, results);
}

// Whether this CTA is the last to arrive at the merge of the unit's queries. Then it sees what the
// others wrote before they arrived. For all threads.
template <typename Traits>
__device__ __forceinline__ bool ArriveAtMerge(const AttentionKernelParams& p, const WorkUnit& unit,
                                              int& is_last) {
  Traits::Meet();
  if (threadIdx.x == 0) {
    // Wraps to 0 at the last arrival, ready for the next layer.
    uint32_t* arrivals =
        p.work.arrivals + unit.item.merge * p.work.num_virtual_heads + unit.virtual_head;
    const uint32_t last = unit.item.num_shared_partials + unit.item.num_partials - 1;
    is_last = IncrementAcquireRelease(arrivals, last) == last;
  }
  Traits::Meet();
  return is_last;
}

// A shared item arrives at the merges of all the rows whose queries it has. `unit` is lost.
template <typename Traits>
__device__ __noinline__ void ArriveAtChildren(const AttentionKernelParams& p, WorkUnit& unit,
                                              AttentionShared<Traits>& shared) {
  const int end = unit.item.end_child;
  for (int child = unit.item.first_child; child < end;) {
    Traits::Meet();  // the unit before is done with
    LoadItem(p.work.items + child, unit);
    CommitCopies();
    WaitForCopies<0>();
    Traits::Meet();
    if (threadIdx.x == 0) CompleteUnit<Traits>(p, unit.virtual_head, unit);
    if (ArriveAtMerge<Traits>(p, unit, shared.is_last_arrival)) {
      MergePartials<Traits>(p, unit, shared.results);
    }
    child += unit.item.num_partials;
  }
}

// Writes what the CTA found. The threads have met after writing `shared.results`, and meet after it
// before they write shared memory again.
template <typename Traits>
__device__ __forceinline__ void FinishUnit(const AttentionKernelParams& p, WorkUnit& unit,
                                           AttentionShared<Traits>& shared) {
  WeighGroups<Traits>(p, unit, shared.results);
  Traits::Meet();
  const bool is_partial = unit.item.partial >= 0;
  ForColumns<Traits>(p, unit, [&](int r, int column) {
    float value[4];
    AddGroups<Traits>(shared.results, r, column, value);
    if (is_partial) {
      const int64_t partial = shared.results.places[r].partial;
      StorePartial(p.work.partial_out + partial * p.head_dim_v, column, p.head_dim_v, value);
    } else {
      StoreFinished<Traits>(p, shared.results, r, column, value);
    }
  });
  if (!is_partial) {
    if (p.out_block_scales == nullptr) return;
    Traits::Meet();
    StoreBlocks<Traits>(p, unit, shared.results);
  } else if (unit.item.row == kSharedRow) {
    ArriveAtChildren<Traits>(p, unit, shared);
  } else if (ArriveAtMerge<Traits>(p, unit, shared.is_last_arrival)) {
    MergePartials<Traits>(p, unit, shared.results);
  }
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_UNIT_RESULTS_CUH_
