// Attention over a PagedBatch or RaggedBatch: the general kernel, tier 1. Every feature of the
// contract (attention/paged_batch.h, attention/attention_params.h) but in-kernel rotary embedding.
//
// Algorithm. FlashAttention-2's loop over steps of keys with online softmax (Dao 2023), over the
// items of a work map (attention/work_map.h): split over keys as in Flash-Decoding, with even
// shares as in Stream-K (Osama et al. 2023). The grid is fixed: CTA c works through the items of
// column c / heads_per_column for the heads c % heads_per_column, c % heads_per_column +
// heads_per_column, ... A tile's rows are an item's queries times the q heads of one kv head, so a
// key is loaded once for the whole group.
//
// Bound. Decode: memory; each K and V element is read once, for 2 x group_size x queries FLOP. Two
// steps of 16 keys are in flight a warp, and as many CTAs a multiprocessor as fit in shared memory,
// for about 64 KB in flight. Prefill: tensor cores through mma.sync, with 64 rows a tile. float32:
// FFMA and shared memory.
//
// Four mechanisms, apart from each other, each in its file:
//   loader      where Q, K, V come from and in what type     key_loader.cuh
//   transform   dot product -> logit                          logits.cuh, ScaleLogits
//   visibility  which keys a query sees, and where they stand logits.cuh, MaskLogits
//   store       out, lse, partials, merge                     unit_results.cuh
//
// Steps of which every row of a warp sees every key take the path without masks, steps of which no
// row sees any are skipped. In all others, logits of unseen keys become -inf and V rows that no row
// of the warp sees are taken as zeros, so that memory which no query sees may hold NaN.

#ifndef ATTENTION_KERNELS_ATTENTION_KERNEL_CUH_
#define ATTENTION_KERNELS_ATTENTION_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/attention_launchers.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/key_loader.cuh"
#include "attention/kernels/logits.cuh"
#include "attention/kernels/online_softmax.cuh"
#include "attention/kernels/products.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/unit_results.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

// The warps that share a step of keys meet.
template <typename Traits>
__device__ __forceinline__ void MeetGroup() {
  if constexpr (Traits::kWarpsM == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// One step of keys, in shared memory, for the 16 rows of a warp.
template <typename Traits>
__device__ __forceinline__ void AttendStep(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const QueryRow (&rows)[2], StepView view, int first,
                                           const uint4* q, const uint4* k, const uint4* v,
                                           const Products<Traits>& products,
                                           OnlineSoftmax<Traits>& softmax) {
  float s[Traits::kKeyTiles][4];
  products.Logits(q, k, s);
  ScaleLogits<Traits>(p, unit, s);
  const bool is_masked = view == StepView::kSome;
  uint32_t seen = ~0u;
  // ALiBi needs positions as well, and gets them on the way.
  if (is_masked || p.alibi_slopes) seen = MaskLogits<Traits>(p, unit, rows, first, s);
  softmax.Take(s);
  if (is_masked) {
    products.template Accumulate<true>(s, v, seen, softmax.out);
  } else {
    products.template Accumulate<false>(s, v, seen, softmax.out);
  }
}

// All steps of the group's share of the item's keys.
template <typename Traits>
__device__ __forceinline__ void AttendKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                           AttentionShared<Traits>& shared,
                                           OnlineSoftmax<Traits>& softmax) {
  const int warp = threadIdx.x / 32;
  const int group = warp / Traits::kWarpsM;
  const int warp_row = warp % Traits::kWarpsM * 16;
  const KeyLoader<Traits> loader(p, unit, threadIdx.x % Traits::kGroupThreads);
  auto* const offsets = shared.offsets[group];
  auto* const k = shared.tiles.k[group];
  auto* const v = shared.tiles.v[group];
  const uint4* const q = shared.tiles.q + warp_row * Traits::kChunks;

  // Step i of the group begins at first + i * stride.
  constexpr int kStride = Traits::kWarpsN * Traits::kKeys;
  const int first = unit.item.key_begin + group * Traits::kKeys;
  const int num_steps = max(0, (unit.item.key_end - first + kStride - 1) / kStride);

  const auto first_place = loader.Find(first);
  const auto second_place = loader.Find(first + kStride);
  auto place = loader.Find(first + 2 * kStride);
  LoadQueries<Traits>(p, unit, shared.tiles.q);
  CommitCopies();
  loader.Note(offsets[0], first_place);
  loader.Note(offsets[1], second_place);
  MeetGroup<Traits>();
  if (num_steps > 0) loader.Load(k[0], v[0], offsets[0], first);
  CommitCopies();

  const int lane_row = warp_row + threadIdx.x % 32 / 4;
  const QueryRow rows[2] = {LoadQueryRow(p, unit, lane_row), LoadQueryRow(p, unit, lane_row + 8)};
  const WarpView warp_view = ViewOf(rows);
  WaitForCopies<1>();  // the queries
  __syncthreads();
  Products<Traits> products;
  products.TakeQueries(q);

  for (int i = 0; i < num_steps; ++i) {
    const int stage = i % Traits::kStages;
    // The other stage's keys are done with, and the places of step i + 1 are noted.
    const int step_first = first + i * kStride;
    if (i + 1 < num_steps) {
      loader.Load(k[stage ^ 1], v[stage ^ 1], offsets[stage ^ 1], step_first + kStride);
    }
    CommitCopies();
    // The table is read a step before it is noted, and that is a step before the copies.
    const auto next_place = loader.Find(step_first + 3 * kStride);
    WaitForCopies<1>();  // step i
    MeetGroup<Traits>();
    const StepView view = ViewStep(p, unit, warp_view, step_first, Traits::kKeys);
    if (view != StepView::kNothing) {
      AttendStep<Traits>(p, unit, rows, view, step_first, q, k[stage], v[stage], products, softmax);
    }
    loader.Note(offsets[stage], place);
    place = next_place;
    MeetGroup<Traits>();
  }
}

// Leaves the warp's share where FinishUnit() looks for it.
template <typename Traits>
__device__ __forceinline__ void LeaveResults(const OnlineSoftmax<Traits>& softmax,
                                             typename AttentionShared<Traits>::Results& results) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int group = warp / Traits::kWarpsM;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp % Traits::kWarpsM * 16 + lane / 4 + r * 8;
    const float sum = QuadSum(softmax.sum[r]);
    if (lane % 4 == 0) {
      results.max[group][row] = softmax.max[r];
      results.sum[group][row] = sum;
    }
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      *reinterpret_cast<float2*>(&results.out[group][row][Products<Traits>::OutColumn(n)]) = {
          softmax.out[n][r * 2], softmax.out[n][r * 2 + 1]};
    }
  }
}

// out = 0, lse = -inf for tokens past the last live one.
template <typename Traits>
__device__ __forceinline__ void ClearInertTokens(const AttentionKernelParams& p) {
  const int64_t first = p.query_start_loc[p.num_rows];
  for (int64_t token = first + blockIdx.x; token < p.num_out_tokens; token += gridDim.x) {
    for (int q_head = threadIdx.x / 32; q_head < p.num_q_heads; q_head += Traits::kWarps) {
      const TileRow row{0, static_cast<int>(token), q_head};
      if (p.lse && threadIdx.x % 32 == 0) {
        p.lse[token * p.lse_token_stride + q_head * p.lse_head_stride] = -INFINITY;
      }
      for (int column = threadIdx.x % 32 * 4; column < p.head_dim_v; column += 128) {
        const float zeros[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        StoreColumns<Traits>(p, OutAt(p, row), column, zeros);
      }
    }
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kTile.ctas_per_sm)
    AttentionKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<AttentionShared<Traits>*>(shared_memory);

  const WorkMap& work = p.work;
  const int column = blockIdx.x / work.heads_per_column;
  const int first_head = blockIdx.x - column * work.heads_per_column;
  int slot = 0;
  LoadItem(work.column_first + column, shared.units[slot]);
  CommitCopies();
  int item = work.column_items[column];
  const int end_item = work.column_items[column + 1];
  for (int head = first_head; item < end_item;) {
    WorkUnit& unit = shared.units[slot];
    WaitForCopies<0>();
    __syncthreads();  // the item is there, and the results of the unit before are written out
    if (threadIdx.x == 0) CompleteUnit<Traits>(p, head, unit);
    head += work.heads_per_column;
    if (head >= work.num_virtual_heads) {
      head = first_head;
      ++item;
    }
    slot ^= 1;
    if (item < end_item) LoadItem(work.items + item, shared.units[slot]);
    __syncthreads();  // the unit is complete

    OnlineSoftmax<Traits> softmax;
    AttendKeys<Traits>(p, unit, shared, softmax);
    __syncthreads();  // the keys' memory becomes the results'
    LeaveResults<Traits>(softmax, shared.results);
    __syncthreads();
    FinishUnit<Traits>(p, unit, shared);
  }
  WaitForCopies<0>();  // of an item that was not there
  ClearInertTokens<Traits>(p);
}

template <int kIndex>
cudaError_t LaunchAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  using Traits = TileTraits<kIndex>;
  constexpr int kSharedBytes = sizeof(AttentionShared<Traits>);
  static_assert(kSharedBytes <= 99 * 1024, "the smaller cards of compute capability 8.x");
  const auto kernel = &AttentionKernel<Traits>;
  // Cheap, and right for whichever device is current.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  kernel<<<params.work.num_ctas, Traits::kThreads, kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_KERNEL_CUH_
