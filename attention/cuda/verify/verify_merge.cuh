// The end of a unit of many rows (attention/cuda/general/unit_results.cuh, partial_merge.cuh have
// those of others): the groups' shares are added up and written, and partials are merged. A thread
// has up to eight rows here, so what depends on the row alone, weights and factors, is computed once
// a row and not by every thread of it; and a thread requests up to 16 partials at a time, of as many
// rows as have so many, so that it waits for the L2 cache once or twice and not once a row.
//
// Bound: latency; of a merge of many partials 64 bytes per cycle and multiprocessor. All of it runs
// once a unit, from instructions that must be fetched first, so loops are not unrolled further than
// the loads in flight need.

#ifndef ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_
#define ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_

#include <cmath>
#include <cstdint>

#include "attention/cuda/general/attention_kernel_params.h"
#include "attention/cuda/general/device_primitives.cuh"
#include "attention/cuda/general/online_softmax.cuh"
#include "attention/cuda/general/partial_merge.cuh"
#include "attention/cuda/general/tile_traits.cuh"
#include "attention/cuda/general/unit_results.cuh"
#include "attention/cuda/general/work_unit.cuh"

namespace reprise {

// A thread's place among the rows of a tile: 4 columns of every kRowStep-th row.
template <typename Traits>
struct ThreadColumns {
  static constexpr int kRowParts = Traits::kHeadDimV / 4;
  static constexpr int kRowStep = Traits::kThreads / kRowParts;
  static constexpr int kMostRows = (Traits::kRows + kRowStep - 1) / kRowStep;  // of a thread
  static_assert(Traits::kThreads % kRowParts == 0);

  int first_row = static_cast<int>(threadIdx.x) / kRowParts;
  int column = static_cast<int>(threadIdx.x) % kRowParts * 4;
};

// In place of that of unit_results.cuh. Called by all threads, which have synchronised.
template <typename Traits, typename Results>
requires(Traits::kAddsPartialsAtOnce) __device__ __forceinline__
    void WriteUnit(const AttentionKernelParams& p, const WorkUnit& unit, Results& results) {
  using Columns = ThreadColumns<Traits>;
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
  const Columns columns;
  if (columns.column < p.head_dim_v) {
#pragma unroll 2
    for (int r = columns.first_row; r < unit.num_rows; r += Columns::kRowStep) {
      float weight[Traits::kWarpsN];
#pragma unroll
      for (int g = 0; g < Traits::kWarpsN; ++g) weight[g] = results.sum[g][r];
      float value[4];
      AddGroups<Traits>(results, weight, r, columns.column, 1.0f, value);
      const TileRow tile_row = RowAt(p, unit, r);
      if (is_partial) {
        StorePartial(p, PartialAt(p.work, unit.item.partial, tile_row), columns.column, value);
      } else {
        StoreFinished<Traits>(p, results, tile_row, r, columns.column, value);
      }
    }
  }
  if (is_partial || p.out_block_scales == nullptr) return;
  Traits::Meet();
  StoreBlocks<Traits>(p, unit, results);
}

// Adds up the partials of a unit's rows in key order and writes the results out, or in place of the
// first partial of a group.
template <typename Traits>
class FewPartialsAdder {
 public:
  static constexpr int kMost = kMostPiecesAtOnce;  // partials of a row

  __device__ __forceinline__ FewPartialsAdder(const AttentionKernelParams& p, const WorkUnit& unit,
                                              const MergePoint& point,
                                              AttentionShared<Traits>& shared)
      : p_(p),
        unit_(unit),
        point_(point),
        weights_(reinterpret_cast<float (*)[Traits::kRows]>(&shared.merge)) {
    static_assert(sizeof(float[kMost][Traits::kRows]) <= sizeof(shared.merge));
  }

  // Called by all threads, which have synchronised. REQUIRES: 1 to kMost partials, none of shared
  // items; no block scales of out.
  __device__ __forceinline__ void Run() const {
    if (point_.own.count <= 2) {
      AddRows<Columns::kMostRows, 2>();
    } else if (point_.own.count <= 4) {
      AddRows<(Columns::kMostRows + 1) / 2, 4>();
    } else {
      AddRows<1, 16>();
    }
  }

 private:
  using Columns = ThreadColumns<Traits>;
  static constexpr int kLanes = Traits::kThreads / Traits::kRows;  // threads that weigh a row
  static_assert(kLanes == 4);

  // Rows of a thread at a time, and partials of each.
  template <int kRowsAtOnce, int kPartials>
  struct Batch {
    float4 of[kRowsAtOnce][kPartials];
  };

  // Requests partials [begin, begin + kPartials) of the thread's rows from `row` on.
  template <int kRowsAtOnce, int kPartials>
  __device__ __forceinline__ void Request(int row, int column, int begin,
                                          Batch<kRowsAtOnce, kPartials>& batch) const {
    const int64_t pitch = PartialPitch(p_.head_dim_v);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int r = row + i * Columns::kRowStep;
      const bool is_there = r < unit_.num_rows && column < p_.head_dim_v;
      const int64_t first =
          PartialAt(p_.work, point_.own.first, RowAt(p_, unit_, is_there ? r : 0)) +
          begin * point_.own.stride;
      const float* out = p_.work.partial_out + first * pitch + (is_there ? column : 0);
#pragma unroll
      for (int n = 0; n < kPartials; ++n) {
        batch.of[i][n] = is_there && begin + n < point_.own.count
                             ? __ldcg(reinterpret_cast<const float4*>(out))
                             : float4{0.0f, 0.0f, 0.0f, 0.0f};
        out += point_.own.stride * pitch;
      }
    }
  }

  // Finds the factors of all partials of a row, kLanes threads a row.
  __device__ __forceinline__ void Weigh() const {
    constexpr int kOfLane = kMost / kLanes;
    const int lane = threadIdx.x % kLanes;
    const int row = threadIdx.x / kLanes;
    const bool is_row = row < unit_.num_rows;
    const TileRow tile_row = RowAt(p_, unit_, is_row ? row : 0);
    const float* lses = p_.work.partial_lse + PartialAt(p_.work, point_.own.first, tile_row);
    float weight[kOfLane];
    RowTotal total = {-INFINITY, 0.0f};
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int n = i * kLanes + lane;
      weight[i] = is_row && n < point_.own.count ? __ldcg(lses + n * point_.own.stride) : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) total.max = fmaxf(total.max, weight[i]);
    total.max = QuadMax(total.max);
    const float reference = Reference(total.max);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      weight[i] = Exp2<Traits>(weight[i] - reference);
      total.sum += weight[i];
    }
    total.sum = QuadSum(total.sum);
    if (!is_row) return;
    float factor;
    if (point_.to < 0) {
      factor = FinishRow(p_, unit_, tile_row, total);
    } else {
      // All lanes of the row have read the lse that this replaces.
      factor = FinishPartialRow<Traits>(
          total, p_.work.partial_lse[PartialAt(p_.work, point_.to, tile_row)]);
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) weights_[i * kLanes + lane][row] = weight[i] * factor;
  }

  __device__ __forceinline__ void Store(int row, int column, const float (&sum)[4]) const {
    if (row >= unit_.num_rows || column >= p_.head_dim_v) return;
    const TileRow tile_row = RowAt(p_, unit_, row);
    if (point_.to < 0) {
      StoreColumns<Traits>(p_, OutAt(p_, tile_row), column, sum);
    } else {
      StorePartial(p_, PartialAt(p_.work, point_.to, tile_row), column, sum);
    }
  }

  // The first partials are under way while the rows are weighed, and later ones while those before
  // them are added up.
  template <int kRowsAtOnce, int kPartials>
  __device__ __forceinline__ void AddRows() const {
    const Columns columns;
    const int count = point_.own.count;
    int row = columns.first_row;
    int begin = 0;
    Batch<kRowsAtOnce, kPartials> batch;
    Request(row, columns.column, begin, batch);
    Weigh();
    Traits::Meet();
    float sum[kRowsAtOnce][4] = {};
#pragma unroll 1
    while (row < unit_.num_rows) {
      const bool is_last = begin + kPartials >= count;
      const int next_row = is_last ? row + kRowsAtOnce * Columns::kRowStep : row;
      const int next_begin = is_last ? 0 : begin + kPartials;
      Batch<kRowsAtOnce, kPartials> next;
      if (next_row < unit_.num_rows) Request(next_row, columns.column, next_begin, next);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int r = min(row + i * Columns::kRowStep, Traits::kRows - 1);
#pragma unroll
        for (int n = 0; n < kPartials; ++n) {
          const float weight = weights_[begin + n][r];
          sum[i][0] = fmaf(weight, batch.of[i][n].x, sum[i][0]);
          sum[i][1] = fmaf(weight, batch.of[i][n].y, sum[i][1]);
          sum[i][2] = fmaf(weight, batch.of[i][n].z, sum[i][2]);
          sum[i][3] = fmaf(weight, batch.of[i][n].w, sum[i][3]);
        }
        if (!is_last) continue;
        Store(row + i * Columns::kRowStep, columns.column, sum[i]);
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.0f;
      }
      batch = next;
      row = next_row;
      begin = next_begin;
    }
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const MergePoint& point_;
  float (*const weights_)[Traits::kRows];
};

// In place of that of partial_merge.cuh.
template <typename Traits>
requires(Traits::kAddsPartialsAtOnce) __device__ __forceinline__
    void MergePartials(const AttentionKernelParams& p, const WorkUnit& unit,
                       const MergePoint& point, AttentionShared<Traits>& shared) {
  if (point.shared.count == 0 && p.out_block_scales == nullptr &&
      point.own.count <= FewPartialsAdder<Traits>::kMost) {
    FewPartialsAdder<Traits>(p, unit, point, shared).Run();
    return;
  }
  PartialAdder<Traits>(p, unit, point, {0, unit.num_rows}, shared).Run();
  WaitForCopies<0>();  // empty groups
  if (point.to < 0 && p.out_block_scales != nullptr) {
    Traits::Meet();
    StoreBlocks<Traits>(p, unit, shared.results);
  }
}

}  // namespace reprise

#endif  // ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_
