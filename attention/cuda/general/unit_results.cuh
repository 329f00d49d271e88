// The epilogue of a unit. Adds up the sums of the CTA's warp groups, and writes the result to out
// and lse, or stores it as a partial, which is combined later with the partials of other splits
// (partial_combine.cuh). First one thread per row computes the rescale factors. Then each thread
// processes 4 columns of a row at a time.
//
// This code runs once or twice per unit, and most of its instructions must be fetched first. It is
// therefore written for few instructions rather than few operations, and rarely used parts are not
// inlined.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_UNIT_RESULTS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_UNIT_RESULTS_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/convert.cuh"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/products.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/tile_schedule/tile_schedule.h"

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

// Stores 16-bit and 8-bit types.
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

// Writes 4 columns of out in any type, aligned or not. Not inlined, because StoreColumns() serves
// the common case.
template <typename Traits>
__device__ __noinline__ void StoreColumnsAs(const AttentionKernelParams& p, int64_t at, int column,
                                            float4 columns) {
  const float value[4] = {columns.x, columns.y, columns.z, columns.w};
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

// Writes 4 columns of the row of out that begins at element `at`.
template <typename Traits>
__device__ __forceinline__ void StoreColumns(const AttentionKernelParams& p, int64_t at, int column,
                                             const float (&value)[4]) {
  using Element = typename Traits::Element;
  if constexpr (Traits::kTensorCores) {
    if (p.out_dtype == Traits::kTile.dtype && p.out_is_aligned) {
      *reinterpret_cast<uint2*>(static_cast<Element*>(p.out) + at + column) = {
          Pack<Element>(value[0], value[1]), Pack<Element>(value[2], value[3])};
      return;
    }
  }
  StoreColumnsAs<Traits>(p, at, column, {value[0], value[1], value[2], value[3]});
}

// The scale of a block of out_block columns: maps the block's largest absolute value to the largest
// value of out's type. At least the scale of 1e-10, so that a block of zeros has a positive scale.
__device__ __forceinline__ float BlockScale(const AttentionKernelParams& p, float largest) {
  return fmaxf(largest, 1e-10f) / LargestOf(p.out_dtype);
}

// Adds the sink, writes lse, and returns the factor of a sum that is relative to total.max. The
// factor includes the scales of V and out, but not block scales.
__device__ __forceinline__ float FinishRow(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const TileRow& row, const RowTotal& total) {
  float factor = 0.0f;
  float lse = -INFINITY;
  if (total.max != -INFINITY) {
    float max = total.max;
    float sum = total.sum;
    factor = unit.v_scale;
    if (p.sinks) {
      const float sink = p.sinks[row.q_head] * kLog2E;
      max = fmaxf(max, sink);
      const float rescale = exp2f(total.max - max);
      sum = sum * rescale + exp2f(sink - max);
      factor *= rescale;
    }
    factor /= sum * ScaleAt(p.out_scale, 0, 0);
    if (p.lse) lse = (max + log2f(sum)) * kLn2;
  }
  if (p.lse) p.lse[row.token * p.lse_token_stride + row.q_head * p.lse_head_stride] = lse;
  return factor;
}

// Index of a row's lse among the partials. This index times PartialPitch(head_dim_v) is the index
// of the row's out.
__device__ __forceinline__ int64_t PartialAt(const KernelSchedule& work, int partial,
                                             const TileRow& row) {
  return static_cast<int64_t>(partial + row.query) * work.num_q_heads + row.q_head;
}

// Calls body(row, column) for every 4 columns of every row of the tile, distributed over the CTA.
template <typename Traits, typename Body>
__device__ __forceinline__ void ForColumns(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const Body& body) {
  constexpr int kRowParts = Traits::kHeadDimV / 4;
  constexpr int kRowsAtOnce = Traits::kRows > kDecodeRows ? 2 : 1;
#pragma unroll kRowsAtOnce
  for (int at = threadIdx.x; at < unit.num_rows * kRowParts; at += Traits::kThreads) {
    const int column = at % kRowParts * 4;
    if (column < p.head_dim_v) body(at / kRowParts, column);
  }
}

// Computes the rescale factor of each warp group's sums of each row and stores it in results.sum.
// finish(row, total) returns the factor that all groups of a row have in common. One thread per
// row, because this takes many instructions. Called by all threads, after a barrier; ends with a
// barrier.
template <typename Traits, typename Results, typename Finish>
__device__ __forceinline__ void WeighRows(const WorkUnit& unit, Results& results,
                                          const Finish& finish) {
  static_assert(Traits::kThreads >= Traits::kRows);
  const int row = threadIdx.x;
  if (row < unit.num_rows) {
    RowTotal total{-INFINITY, 0.0f};
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) total.max = fmaxf(total.max, results.max[g][row]);
    const float reference = Reference(total.max);
    float weight[Traits::kWarpsN];
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) {
      weight[g] = Exp2<Traits>(results.max[g][row] - reference);
      total.sum = fmaf(results.sum[g][row], weight[g], total.sum);
    }
    const float factor = finish(row, total);
#pragma unroll
    for (int g = 0; g < Traits::kWarpsN; ++g) results.sum[g][row] = weight[g] * factor;
  }
  Traits::Sync();
}

// Adds up the warp groups' sums of 4 columns of a row. REQUIRES: WeighRows() has been called.
template <typename Traits, typename Results>
__device__ __forceinline__ void AddGroups(const Results& results, int row, int column,
                                          float (&value)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) value[e] = 0.0f;
#pragma unroll
  for (int g = 0; g < Traits::kWarpsN; ++g) {
    const float4 out = *reinterpret_cast<const float4*>(&results.out[g][row][column]);
    const float w = results.sum[g][row];
    value[0] = fmaf(out.x, w, value[0]);
    value[1] = fmaf(out.y, w, value[1]);
    value[2] = fmaf(out.z, w, value[2]);
    value[3] = fmaf(out.w, w, value[3]);
  }
}

// 1 / x of a sum of weights. 16-bit types use the hardware's approximation (1 ulp).
template <typename Traits>
__device__ __forceinline__ float Reciprocal(float x) {
  if constexpr (Traits::kTensorCores) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  } else {
    return 1.0f / x;
  }
}

// Computes a partial row's lse. Returns the factor of a sum that is relative to total.max.
template <typename Traits>
__device__ __forceinline__ float FinishPartialRow(const RowTotal& total, float& lse) {
  const bool sees_any = total.max != -INFINITY;
  lse = sees_any ? total.max + log2f(total.sum) : -INFINITY;
  return sees_any ? Reciprocal<Traits>(total.sum) : 0.0f;
}

__device__ __forceinline__ void StorePartial(const AttentionKernelParams& p, int64_t partial,
                                             int column, const float (&value)[4]) {
  float* const out = p.work.partial_out + partial * PartialPitch(p.head_dim_v);
  *reinterpret_cast<float4*>(out + column) = {value[0], value[1], value[2], value[3]};
}

// Writes 4 columns of a finished row to out. With block scales of out, writes them to group 0's
// sums instead, for StoreBlocks().
template <typename Traits>
__device__ __forceinline__ void StoreFinished(const AttentionKernelParams& p,
                                              typename AttentionShared<Traits>::Results& results,
                                              const TileRow& tile_row, int row, int column,
                                              const float (&value)[4]) {
  if (p.out_block_scales == nullptr) {
    StoreColumns<Traits>(p, OutAt(p, tile_row), column, value);
  } else {
    *reinterpret_cast<float4*>(&results.out[0][row][column]) = {value[0], value[1], value[2],
                                                                value[3]};
  }
}

// Quantises finished rows from group 0's sums with block scales. Each thread has one block of
// columns at a time.
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
      StoreColumnsAs<Traits>(p, OutAt(p, row), c,
                             {columns[c] * factor, columns[c + 1] * factor, columns[c + 2] * factor,
                              columns[c + 3] * factor});
    }
  }
}

// Stores a warp's sums in shared memory, for WriteUnit().
template <typename Traits>
__device__ __forceinline__ void LeaveResults(const WorkUnit& unit,
                                             const OnlineSoftmax<Traits>& softmax,
                                             typename AttentionShared<Traits>::Results& results) {
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / Traits::kGroupThreads;
  const int first_column = WarpPart<Traits>() * Traits::kOutColumns;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = WarpRow<Traits>() + lane / 4 + r * 8;
    const float sum = QuadSum(softmax.sum[r]);
    if (row >= unit.num_rows) continue;
    if (lane % 4 == 0 && WarpPart<Traits>() == 0) {
      results.max[group][row] = softmax.max[r];
      results.sum[group][row] = sum;
    }
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      const int column = first_column + Products<Traits>::OutColumn(n);
      *reinterpret_cast<float2*>(&results.out[group][row][column]) = {softmax.out[n][r * 2],
                                                                      softmax.out[n][r * 2 + 1]};
    }
  }
}

// Writes the sums that LeaveResults() stored, to out or to a partial, which must still be combined.
// Results: AttentionShared<Traits>::Results. REQUIRES: a barrier since LeaveResults(), and a
// barrier before shared memory is written again.
template <typename Traits, typename Results>
__device__ __forceinline__ void WriteUnit(const AttentionKernelParams& p, const WorkUnit& unit,
                                          Results& results) {
  const bool is_partial = unit.item.partial >= 0;
  WeighRows<Traits>(unit, results, [&](int r, const RowTotal& total) {
    const TileRow row = RowAt(p, unit, r);
    if (!is_partial) return FinishRow(p, unit, row, total);
    const int64_t partial = PartialAt(p.work, unit.item.partial, row);
    return FinishPartialRow<Traits>(total, p.work.partial_lse[partial]);
  });
  ForColumns<Traits>(p, unit, [&](int r, int column) {
    const TileRow row = RowAt(p, unit, r);
    float value[4];
    AddGroups<Traits>(results, r, column, value);
    if (is_partial) {
      StorePartial(p, PartialAt(p.work, unit.item.partial, row), column, value);
    } else {
      StoreFinished<Traits>(p, results, row, r, column, value);
    }
  });
  if (is_partial || p.out_block_scales == nullptr) return;
  Traits::Sync();
  StoreBlocks<Traits>(p, unit, results);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_UNIT_RESULTS_CUH_
