// The general kernel (tier 1) for attention over a PagedBatch or RaggedBatch. Serves every feature
// of the contract (attention/paged_batch.h, attention/attention_params.h,
// attention/attention_extras.h).
//
// Algorithm. FlashAttention-2's loop over KV tiles with online softmax (Dao 2023), applied to the
// items of a tile schedule (attention/tile_schedule/tile_schedule.h). Q tiles may be split over
// keys as in Flash-Decoding, with nearly equal work per CTA as in Stream-K (Osama et al. 2023). The
// plan fixes the grid; attention/tile_schedule/cta_units.h describes the units of each CTA. The
// rows of a tile are the item's queries times the q heads of one KV head, so each key is loaded
// once for all q heads in the tile. A KV tile is called a step in identifiers.
//
// Bound. Decode: memory. Each tile reads each K and V element once, for 2 x group_size x queries
// FLOP. For 16-bit types, each CTA has about 64 KB of K and V buffers, two KV tiles per warp group,
// and two or three CTAs run per SM. Prefill: tensor cores through mma.sync, with 128 rows per tile,
// or 64 rows if head_dim > 128. Absorbed MLA: K is also V; with 128 heads, 242 FLOP per byte of the
// cache. float32: FFMA and shared memory.
//
// The kernel has five independent mechanisms:
//   work        assigns queries and keys to CTAs         work_unit.cuh, tile_schedule.h
//   loader      copies Q, K and V to shared memory,      page_lookup.cuh, query_loader.cuh,
//               unconverted or through a conversion,     key_loader.cuh, converting_loader.cuh,
//               and applies rotary embedding             rotation.cuh
//   transform   dot product -> logit                     logits.cuh, ScaleLogits
//   visibility  keys that a query sees, key positions    logits.cuh, MaskLogits
//   store       out, lse, partials, combine              unit_results.cuh, partial_combine.cuh
//
// Without ALiBi, no mask is applied to a KV tile that is known to be fully visible to every row of
// a warp. A warp skips a KV tile without tail keys whose positions are all before or all after the
// positions that its rows may see (ViewStep()). In all other KV tiles, logits of unseen keys become
// -inf, and V rows that no row of the warp sees count as zeros. Memory that no query sees may
// therefore hold NaN.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/general/converting_loader.cuh"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/first_keys.cuh"
#include "reprise/attention/cuda/general/group_barrier.cuh"
#include "reprise/attention/cuda/general/key_loader.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/partial_combine.cuh"
#include "reprise/attention/cuda/general/products.cuh"
#include "reprise/attention/cuda/general/query_loader.cuh"
#include "reprise/attention/cuda/general/rotation.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/unit_results.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/cta_units.h"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

// Loads the part of Q that stays in registers. If the warps with the same rows exchange partial
// logits through Q's memory, ends with a barrier.
template <typename Traits>
__device__ __forceinline__ void TakeQueries(Products<Traits>& products, const uint4* q) {
  products.TakeQueries(q);
  if constexpr (Traits::kWarpsD > 1 && Traits::kHoldQ) __syncthreads();
}

// A warp's view of the unit that its CTA computes. `q`: the warp's 16 rows of the tile in shared
// memory.
template <typename Traits>
struct TileContext {
  const AttentionKernelParams& p;
  const WorkUnit& unit;
  const uint4* q;
  const Products<Traits>& products;
  AttentionShared<Traits>& shared;
  OnlineSoftmax<Traits>& softmax;
};

// A KV tile in shared memory. `first`: local index of its first key.
struct StepKeys {
  int first;
  const uint4* k;
  const uint4* v;
};

// Attends to one KV tile, for the 16 rows of a warp.
template <typename Traits>
__device__ __forceinline__ void AttendStep(const TileContext<Traits>& tile,
                                           const QueryRow (&rows)[2], StepView view,
                                           const StepKeys& keys) {
  const AttentionKernelParams& p = tile.p;
  const WorkUnit& unit = tile.unit;
  float s[Traits::kKeyTiles][4];
  MultiplyKeys<Traits>(tile.products, tile.q, keys.k, tile.shared, s);
  ScaleNewKeys<Traits>(p, unit, keys.first, unit.new_k_factor, s);
  ScaleLogits<Traits>(p, rows, s);
  const bool is_masked = view == StepView::kSome;
  uint32_t seen = ~0u;
  // MaskLogits() also applies ALiBi, which needs positions.
  if (is_masked || p.alibi_slopes) seen = MaskLogits<Traits>(p, unit, rows, keys.first, s);
  tile.softmax.Take(s);
  ScaleNewKeys<Traits>(p, unit, keys.first, unit.new_v_factor, s);
  // The masked MMA also serves fully visible KV tiles: masking costs less than a second copy of the
  // code. AttendPlainStep() has the unmasked MMA.
  tile.products.template Accumulate<true>(s, keys.v, seen, tile.softmax.out);
}

// Attends to one KV tile on the fast path, which has few instructions. In kernels that do not
// convert keys, nearly all KV tiles of most batches take it. REQUIRES: each key of the KV tile that
// belongs to the item is seen by at least one row of the warp; logits are dot products times a
// positive scale (AreOnlyScaled()). Keys past the item's last key are zeros in shared memory.
template <typename Traits>
__device__ __forceinline__ void AttendPlainStep(const TileContext<Traits>& tile,
                                                const WarpKeys& seen, const float (&scale)[2],
                                                const StepKeys& keys) {
  const int first = keys.first;
  float s[Traits::kKeyTiles][4];
  MultiplyKeys<Traits>(tile.products, tile.q, keys.k, tile.shared, s);
  if (first < seen.by_all.begin || first + Traits::kKeys > seen.by_all.end) {
    HideUnseen<Traits>(seen.of_row, first, s);
  }
  float rescale[2];
  tile.softmax.WeighScaled(s, scale, rescale);
  tile.softmax.Rescale(rescale);
  tile.products.template Accumulate<false>(s, keys.v, ~0u, tile.softmax.out);
}

// A lane's rows of the tile.
struct LaneRows {
  QueryRow rows[2];
};

template <typename Traits>
__device__ __forceinline__ LaneRows LoadLaneRows(const AttentionKernelParams& p,
                                                 const WorkUnit& unit) {
  const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4;
  return {{LoadQueryRow(p, unit, row), LoadQueryRow(p, unit, row + 8)}};
}

// Undoes the scaling of LoadScaledQueries() in the rows' logit scales.
template <typename Traits>
__device__ __forceinline__ void UnscaleRows(const AttentionShared<Traits>& shared, LaneRows& lane) {
  if constexpr (Traits::kFp8) {
    const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4;
    lane.rows[0].logit_scale *= shared.row_scales[row];
    lane.rows[1].logit_scale *= shared.row_scales[row + 8];
  }
}

// Per-thread values that all KV tiles of a unit share.
struct StepTerms {
  WarpKeys seen;
  int key_end;     // end of the item's keys
  bool is_plain;   // logits are dot products times `scale`
  float scale[2];  // by row of the lane; set by SetScales()
};

// Computes all fields but `scale`. SetScales() computes it after the queries have arrived, because
// it needs the row scales of fp8 kernels.
__device__ __forceinline__ StepTerms TermsOf(const AttentionKernelParams& p, const WorkUnit& unit,
                                             const LaneRows& lane) {
  StepTerms terms;
  terms.seen = KeysOfWarp(p, unit, lane.rows);
  terms.key_end = unit.item.key_end;
  terms.is_plain = AreOnlyScaled(p, lane.rows);
  return terms;
}

// Unscales the lane's rows (UnscaleRows()) and computes their scales. REQUIRES: the queries have
// arrived.
template <typename Traits>
__device__ __forceinline__ void SetScales(const AttentionShared<Traits>& shared, LaneRows& lane,
                                          StepTerms& terms) {
  UnscaleRows(shared, lane);
  for (int r = 0; r < 2; ++r) {
    terms.scale[r] = lane.rows[r].logit_scale * kLog2E;
    // The scale of a row of zeros may have become 0, and 0 times the logit of an unseen key, -inf,
    // is NaN. Scales are positive where `scale` is used (is_plain).
    if constexpr (Traits::kFp8) terms.scale[r] = fmaxf(terms.scale[r], FLT_MIN);
  }
}

// Processes the KV tiles of a warp group (KvLoading::kDirect, kFp8), in a pipeline of kStages
// stages. Iteration i uses stage i % kStages:
// 1. Each thread waits for its own copies of KV tile i.
// 2. Group barrier: the copies of all threads are visible to the group.
// 3. Each warp attends to the stage. Then each thread records the address of its key in KV tile i +
//    kStages.
// 4. Group barrier: no warp reads the stage any longer, and the addresses are visible to the group.
// 5. Each thread starts its copies of KV tile i + kStages into the stage.
//
// REQUIRES: the copies of the first kStages KV tiles have been committed, one cp.async group per KV
// tile, and no later group; `place` is the location of this thread's key in KV tile kStages.
template <typename Traits>
__device__ __forceinline__ void AttendSteps(const TileContext<Traits>& tile,
                                            const GroupSteps<Traits>& steps,
                                            const PageLookup<Traits>& places,
                                            const KeyLoader<Traits>& loader, KeyAddress place,
                                            const StepTerms& terms) {
  constexpr int kStride = GroupSteps<Traits>::kStride;
  auto* const offsets = tile.shared.offsets[steps.group];
  auto* const stages = tile.shared.tiles.stages[steps.group];
#pragma unroll 1
  for (int i = 0; i < steps.count; ++i) {
    const int stage = i % Traits::kStages;
    const int step_first = steps.first + i * kStride;
    const StepKeys keys = {step_first, stages[stage].k(), stages[stage].v()};
    WaitForCopies<Traits::kStages - 1>();  // KV tile i
    SyncGroup<Traits>();
    const SeenKeys& seen = terms.seen.by_any;
    if (terms.is_plain && step_first >= seen.begin &&
        min(step_first + Traits::kKeys, terms.key_end) <= seen.end) {
      AttendPlainStep<Traits>(tile, terms.seen, terms.scale, keys);
    } else {
      // This path is rare, so it reloads the rows rather than keep them in registers.
      LaneRows lane = LoadLaneRows<Traits>(tile.p, tile.unit);
      UnscaleRows(tile.shared, lane);
      const StepView view =
          ViewStep(tile.p, tile.unit, ViewOf(lane.rows), step_first, Traits::kKeys);
      if (view != StepView::kNothing) AttendStep<Traits>(tile, lane.rows, view, keys);
    }
    // The block table entry was requested in the previous iteration.
    places.Note(offsets[stage], place);
    SyncGroup<Traits>();
    const int next = step_first + Traits::kStages * kStride;
    if (i + Traits::kStages < steps.count) {
      loader.Load(stages[stage].k(), stages[stage].v(), offsets[stage], next);
    }
    CommitCopies();
    place = places.Find(next + kStride);
  }
}

// Processes the warp group's KV tiles of an item. `noted`: the result of BeginUnits() for the CTA's
// first unit; `are_noted` is false for later units.
//
// The latency of the first keys is a chain of loads: item, block table, keys. No other load is on
// this chain, except scales in device memory. q is requested while the block table entries are
// loading; in kernels with a PDL prologue, after the first KV tile; in fp8 kernels, after all
// stages. The wait for q comes after the copies to all stages have been started.
template <typename Traits>
__device__ __forceinline__ void AttendKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const FirstKeys<Traits>& noted,
                                           AttentionShared<Traits>& shared,
                                           OnlineSoftmax<Traits>& softmax) {
  static_assert(!Traits::kConverts);
  constexpr bool kPrefetchesInPrologue = Traits::kPrefetchesInPrologue;
  constexpr int kStages = Traits::kStages;
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const int first = steps.first;
  const PageLookup<Traits> places(p, unit.item, steps.thread);
  const KeyLoader<Traits> loader(p, unit, steps.thread);
  auto* const offsets = shared.offsets[steps.group];
  auto* const stages = shared.tiles.stages[steps.group];
  const uint4* const q = shared.tiles.q + WarpRow<Traits>() * Traits::kKeyChunks;
  const auto load_step = [&](int i) {
    if (i < steps.count) {
      loader.Load(stages[i].k(), stages[i].v(), offsets[i], first + i * kStride);
    }
  };

  // If the addresses are already recorded, these table reads only verify them. The check comes
  // after the copies have been started.
  KeyAddress first_places[kStages];
#pragma unroll
  for (int i = 0; i < kStages; ++i) first_places[i] = places.Find(first + i * kStride);
  KeyAddress place = places.Find(first + kStages * kStride);
  const auto note = [&] {
#pragma unroll
    for (int i = 0; i < kStages; ++i) places.Note(offsets[i], first_places[i]);
    SyncGroup<Traits>();
  };
  if constexpr (!kPrefetchesInPrologue) {
    if constexpr (!Traits::kFp8) LoadQueries<Traits>(p, unit, shared.tiles.q);
    CommitCopies();
  }
  if (!kPrefetchesInPrologue || !noted.are_noted) note();
  if constexpr (kPrefetchesInPrologue) {
    load_step(0);
    if constexpr (!Traits::kFp8) LoadQueries<Traits>(p, unit, shared.tiles.q);
    CommitCopies();
  }
#pragma unroll(kPrefetchesInPrologue ? kStages : 1)
  for (int i = kPrefetchesInPrologue ? 1 : 0; i < kStages; ++i) {
    load_step(i);
    CommitCopies();
  }

  // Queries of fp8 kernels go through registers, so this waits for q.
  if constexpr (Traits::kFp8) {
    LoadScaledQueries<Traits>(p, unit, shared.tiles.q, shared.row_scales);
  }
  LaneRows first_rows = LoadLaneRows<Traits>(p, unit);
  StepTerms terms = TermsOf(p, unit, first_rows);
  if constexpr (kPrefetchesInPrologue) {
    bool has_changed = false;
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      has_changed |= noted.are_noted && first_places[i].block != noted.blocks[i];
    }
    WaitForCopies<kStages - 1>();  // the queries and the first KV tile
    if (__syncthreads_or(has_changed)) {
      WaitForCopies<0>();  // copies from stale addresses must not arrive later
      __syncthreads();
      note();
#pragma unroll 1
      for (int i = 0; i < kStages; ++i) {
        load_step(i);
        CommitCopies();
      }
    }
  } else {
    WaitForCopies<kStages>();  // the queries
    __syncthreads();
  }
  SetScales(shared, first_rows, terms);
  Products<Traits> products(p);
  TakeQueries<Traits>(products, q);
  const TileContext<Traits> tile = {p, unit, q, products, shared, softmax};
  AttendSteps<Traits>(tile, steps, places, loader, place, terms);
}

// Number of passes over a KV tile. With rotary embedding, a key of the tree mask region (the tail)
// may have a different position for each query that sees it. A KV tile with such keys takes one
// pass per query of the item; other KV tiles take one pass.
template <typename Traits>
__device__ __forceinline__ int NumPasses(const AttentionKernelParams& p, const WorkItem& item,
                                         int first) {
  if (!Traits::kRotates || p.rotary_dim == 0 || item.tail_len == 0) return 1;
  const int end = min(first + Traits::kKeys, item.key_end);
  return end > item.prefix_len ? item.query_end - item.query_begin : 1;
}

// Rotates the keys of the KV tile in shared memory to their positions for query `pass` of the item.
// Passes after the first reload the unrotated keys.
template <typename Traits>
__device__ __forceinline__ void RotateStep(const TileContext<Traits>& tile,
                                           const ConvertingLoader<Traits>& loader,
                                           typename AttentionShared<Traits>::Stage& stage,
                                           const KeyOffsets* offsets, int first, int pass,
                                           int thread) {
  const WorkUnit& unit = tile.unit;
  if (pass > 0) {
    SyncGroup<Traits>();  // all warps have used the keys as rotated for the previous query
    loader.GatherKeys(stage.k(), offsets, first);
    SyncGroup<Traits>();
    if (tile.p.new_k) loader.TakeNew(stage.k(), stage.v(), first);
    SyncGroup<Traits>();
  }
  RotateKeys<Traits>(tile.p, unit, tile.shared.turns, stage.k(), first,
                     unit.item.first_token + pass, thread);
  SyncGroup<Traits>();
}

// AttendKeys() for KvLoading::kConverted. Unconverted keys arrive in a buffer, and each thread
// converts its own copies into a single KV tile. `depth` KV tiles are in flight. Iteration i:
// 1. Each thread waits for its own copies of KV tile i and converts them into the tile. Heads that
//    are not in whole chunks are loaded here instead.
// 2. Group barrier: the tile is complete, and the addresses of KV tiles i + 1 and i + 2 are
//    visible.
// 3. Each thread starts its copies of KV tile i + depth.
// 4. Rope parts and new keys, which come from other tensors, are written into the tile, each
//    followed by a group barrier.
// 5. Each warp attends to the tile, once per pass (NumPasses()).
// 6. Group barrier: no warp reads the tile any longer. Each thread records the address of its key
//    in KV tile i + 3.
template <typename Traits>
__device__ __forceinline__ void AttendConvertedKeys(const AttentionKernelParams& p,
                                                    const WorkUnit& unit,
                                                    AttentionShared<Traits>& shared,
                                                    OnlineSoftmax<Traits>& softmax) {
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const PageLookup<Traits> places(p, unit.item, steps.thread);
  const ConvertingLoader<Traits> loader(p, unit, places.end(), steps.thread);
  const int depth = loader.depth();
  auto* const offsets = shared.offsets[steps.group];
  auto& stage = shared.tiles.stages[steps.group][0];
  uint4* const arriving = shared.tiles.stages[steps.group][1].chunks;
  const uint4* const q = shared.tiles.q + WarpRow<Traits>() * Traits::kKeyChunks;
  const auto start = [&](int i) {
    if (i < steps.count) {
      loader.Start(loader.ArrivalOf(arriving, i), offsets[i % 3], steps.first + i * kStride);
    }
    CommitCopies();
  };

  LoadQueries<Traits>(p, unit, shared.tiles.q);
  CommitCopies();
  for (int i = 0; i < 3; ++i) places.Note(offsets[i], places.Find(steps.first + i * kStride));
  SyncGroup<Traits>();
  for (int i = 0; i < depth; ++i) start(i);
  KeyAddress place = places.Find(steps.first + 3 * kStride);

  const int lane_row = WarpRow<Traits>() + threadIdx.x % 32 / 4;
  const QueryRow rows[2] = {LoadQueryRow(p, unit, lane_row), LoadQueryRow(p, unit, lane_row + 8)};
  const WarpView warp_view = ViewOf(rows);
  if (depth == 2) {
    WaitForCopies<2>();  // the queries
  } else {
    WaitForCopies<1>();
  }
  __syncthreads();
  if constexpr (Traits::kRotates) {
    if (p.rotary_dim > 0) {
      RotateQueries<Traits>(p, unit, shared.turns, shared.tiles.q);
      __syncthreads();
    }
  }
  Products<Traits> products(p);
  TakeQueries<Traits>(products, q);
  const TileContext<Traits> tile = {p, unit, q, products, shared, softmax};

  for (int i = 0; i < steps.count; ++i) {
    const int first = steps.first + i * kStride;
    KeyOffsets* const step_offsets = offsets[i % 3];
    if (depth == 2) {
      WaitForCopies<1>();  // this thread's copies of KV tile i
    } else {
      WaitForCopies<0>();
    }
    loader.Fill(stage.k(), stage.v(), loader.ArrivalOf(arriving, i), step_offsets, first);
    SyncGroup<Traits>();  // the tile and the next two tiles' addresses are complete
    start(i + depth);
    if (p.rope_dim > 0) {
      loader.TakeRope(stage.k(), step_offsets, first);
      SyncGroup<Traits>();
    }
    if (p.new_k) {
      loader.TakeNew(stage.k(), stage.v(), first);
      SyncGroup<Traits>();
    }
    const int num_passes = NumPasses<Traits>(p, unit.item, first);
    for (int pass = 0; pass < num_passes; ++pass) {
      StepView view = ViewStep(p, unit, warp_view, first, Traits::kKeys);
      QueryRow pass_rows[2] = {rows[0], rows[1]};
      if constexpr (Traits::kRotates) {
        if (p.rotary_dim > 0) {
          RotateStep<Traits>(tile, loader, stage, step_offsets, first, pass, steps.thread);
        }
        if (num_passes > 1) {
          const int token = unit.item.first_token + pass;
          if (rows[0].token != token) pass_rows[0] = NoQueryRow();
          if (rows[1].token != token) pass_rows[1] = NoQueryRow();
          if (view == StepView::kAll) view = StepView::kSome;
        }
      }
      if (view != StepView::kNothing) {
        AttendStep<Traits>(tile, pass_rows, view, {first, stage.k(), stage.v()});
      }
    }
    SyncGroup<Traits>();  // all warps have used the tile
    places.Note(step_offsets, place);
    place = places.Find(first + 4 * kStride);
  }
}

// Sets out to 0 and lse, if there is one, to -inf for tokens `first` and later, which belong to no
// row; out and lse have their own numbers of tokens. Also writes the block scales of the tokens of
// out. The CTAs of the grid divide the tokens.
template <typename Traits>
__device__ __noinline__ void ClearTokens(const AttentionKernelParams& p, int first) {
  const int64_t cta = blockIdx.y * gridDim.x + blockIdx.x;
  const int64_t num_ctas = gridDim.x * gridDim.y;
  for (int64_t token = first + cta; token < p.num_clearable_tokens; token += num_ctas) {
    for (int q_head = threadIdx.x / 32; q_head < p.num_q_heads; q_head += Traits::kThreads / 32) {
      const TileRow row{0, static_cast<int>(token), q_head};
      if (token < p.num_lse_tokens && threadIdx.x % 32 == 0) {
        p.lse[token * p.lse_token_stride + q_head * p.lse_head_stride] = -INFINITY;
      }
      if (token >= p.num_out_tokens) continue;
      for (int column = threadIdx.x % 32 * 4; column < p.head_dim_v; column += 128) {
        StoreColumnsAs<Traits>(p, OutAt(p, row), column, {0.0f, 0.0f, 0.0f, 0.0f});
      }
      if (p.out_block_scales == nullptr) continue;
      for (int b = threadIdx.x % 32; b < p.head_dim_v / p.out_block; b += 32) {
        p.out_block_scales[token * p.out_block_token_stride + q_head * p.out_block_head_stride +
                           b] = BlockScale(p, 0.0f);
      }
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void ClearInertTokens(const AttentionKernelParams& p) {
  const int first = p.query_start_loc[p.num_rows];
  if (first < p.num_clearable_tokens) ClearTokens<Traits>(p, first);
}

// Writes the accumulators of a unit through shared memory to out or to a partial. Called by all
// threads.
template <typename Traits>
__device__ __forceinline__ void LeaveUnit(const AttentionKernelParams& p, const WorkUnit& unit,
                                          const OnlineSoftmax<Traits>& softmax,
                                          AttentionShared<Traits>& shared) {
  Traits::Sync();  // the results reuse the memory of the keys
  LeaveResults<Traits>(unit, softmax, shared.results);
  Traits::Sync();
  WriteUnit<Traits>(p, unit, shared.results);
}

// LeaveUnit(), followed by the combine of the unit's partials if this CTA is the last to arrive.
template <typename Traits>
__device__ __forceinline__ void FinishThroughShared(const AttentionKernelParams& p, WorkUnit& unit,
                                                    const OnlineSoftmax<Traits>& softmax,
                                                    AttentionShared<Traits>& shared) {
  LeaveUnit<Traits>(p, unit, softmax, shared);
  if (unit.item.partial >= 0) ArriveAndCombine<Traits>(p, unit, shared);
}

// Iterates over the units of a CTA in the order of its CTA queue. The grid has heads_per_queue
// CTAs per queue, each with every heads_per_queue-th head; CTAs of the same queue are adjacent.
class QueueWalk {
 public:
  static dim3 GridOf(const KernelSchedule& work) {
    return dim3(work.heads_per_queue, work.num_queues);
  }
  // Address of the CTA's first item. Valid memory even if the CTA has no item.
  static __device__ __forceinline__ const WorkItem* FirstItem(const KernelSchedule& work) {
    return work.queue_first + blockIdx.y;
  }

  __device__ __forceinline__ explicit QueueWalk(const KernelSchedule& work)
      : work_(work),
        item_(work.queue_items[blockIdx.y]),
        end_item_(work.queue_items[blockIdx.y + 1]),
        head_(blockIdx.x) {}

  __device__ __forceinline__ bool HasUnit() const { return item_ < end_item_; }
  __device__ __forceinline__ int Item() const { return item_; }
  __device__ __forceinline__ int Head() const { return head_; }
  __device__ __forceinline__ void Next() {
    head_ += work_.heads_per_queue;
    if (head_ < work_.num_head_tiles) return;
    head_ = blockIdx.x;
    ++item_;
  }

 private:
  const KernelSchedule& work_;
  int item_, end_item_, head_;
};

// QueueWalk for tile schedules that may be round-robin (KernelSchedule::may_be_dealt).
class DealtWalk {
 public:
  static dim3 GridOf(const KernelSchedule& work) { return dim3(work.num_ctas); }
  static __device__ __forceinline__ const WorkItem* FirstItem(const KernelSchedule& work) {
    return CtaUnits(work, blockIdx.x).FirstItem();
  }

  __device__ __forceinline__ explicit DealtWalk(const KernelSchedule& work)
      : units_(work, blockIdx.x) {}

  __device__ __forceinline__ bool HasUnit() const { return n_ < units_.count(); }
  __device__ __forceinline__ int Item() const { return units_.ItemOf(n_); }
  __device__ __forceinline__ int Head() const { return units_.HeadOf(n_); }
  __device__ __forceinline__ void Next() { ++n_; }

 private:
  const CtaUnits units_;
  int n_ = 0;
};

template <typename Traits>
using UnitWalk = std::conditional_t<Traits::kRows == kWarpgroupRows, DealtWalk, QueueWalk>;

// The epilogue of a unit: writes the accumulators to out or to a partial, and combines partials.
// All threads call operator() once per unit, and End() after the last unit.
template <typename Traits>
struct GeneralFinish {
  __device__ __forceinline__ explicit GeneralFinish(const AttentionKernelParams&) {}
  __device__ __forceinline__ void operator()(const AttentionKernelParams& p, WorkUnit& unit,
                                             const OnlineSoftmax<Traits>& softmax,
                                             AttentionShared<Traits>& shared, bool /*is_last*/) {
    FinishThroughShared<Traits>(p, unit, softmax, shared);
  }
  __device__ __forceinline__ void End() {}
};

// Prepares the CTA's first unit (first_keys.cuh), and then waits until all work before the call has
// ended. REQUIRES: the copy of the unit's item has been committed.
template <typename Traits>
__device__ __forceinline__ FirstKeys<Traits> BeginUnits(const AttentionKernelParams& p,
                                                        const UnitWalk<Traits>& walk,
                                                        AttentionShared<Traits>& shared) {
  FirstKeys<Traits> first;
  // The previous kernel may write scales in device memory, so such calls prepare nothing.
  if (walk.HasUnit() && !HasScalesOnDevice(p)) {
    WaitForCopies<0>();
    __syncthreads();
    if (threadIdx.x == 0) CompleteUnit<Traits>(p, walk.Head(), shared.units[0]);
    __syncthreads();
    first = NoteFirstKeys<Traits>(p, shared.units[0], shared);
  }
  // If the kernel follows its co-scheduled kernel, all earlier work has already ended.
  if (!p.follows_sibling) GridDependencySync();
  return first;
}

// Processes the units of the CTA. REQUIRES: the grid is UnitWalk<Traits>::GridOf(), or the part of
// it whose CTA queues have items.
template <typename Traits, typename Finish>
__device__ __forceinline__ void AttendUnits(const AttentionKernelParams& p, UnitWalk<Traits>& walk,
                                            FirstKeys<Traits> first, Finish& finish,
                                            AttentionShared<Traits>& shared) {
  int slot = 0;
#pragma unroll 1
  while (walk.HasUnit()) {
    WorkUnit& unit = shared.units[slot];
    const bool is_complete = Traits::kPrefetchesInPrologue && first.are_noted;
    if (!is_complete) {
      WaitForCopies<0>();
      __syncthreads();  // the item is visible; the previous unit's results are written
      if (threadIdx.x == 0) CompleteUnit<Traits>(p, walk.Head(), unit);
    }
    walk.Next();
    slot ^= 1;
    if (walk.HasUnit()) LoadItem(p.work.items + walk.Item(), shared.units[slot]);
    if (!is_complete) __syncthreads();  // the unit is complete
    OnlineSoftmax<Traits> softmax;
    if constexpr (Traits::kConverts) {
      AttendConvertedKeys<Traits>(p, unit, shared, softmax);
    } else {
      AttendKeys<Traits>(p, unit, first, shared, softmax);
    }
    finish(p, unit, softmax, shared, /*is_last=*/!walk.HasUnit());
    first.are_noted = false;
  }
  finish.End();
}

template <typename Traits, typename Finish>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kTile.ctas_per_sm)
    AttentionKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<AttentionShared<Traits>*>(shared_memory);
  PrepareToSync<Traits>();
  TriggerDependents();
  if constexpr (!Traits::kPrefetchesInPrologue) {
    if (!p.follows_sibling) GridDependencySync();
    if constexpr (Traits::kRotates) {
      if (p.rotary_dim > 0) FindTurns<Traits>(p, shared.turns);
    }
  }
  UnitWalk<Traits> walk(p.work);  // loads first, because the next branch depends on them
  LoadItem(UnitWalk<Traits>::FirstItem(p.work), shared.units[0]);
  CommitCopies();
  Finish finish(p);
  FirstKeys<Traits> first;
  if constexpr (Traits::kPrefetchesInPrologue) first = BeginUnits<Traits>(p, walk, shared);
  if (threadIdx.x == 0) {
    CopyAsync4(SharedAddress(&shared.first_inert_token), p.query_start_loc + p.num_rows);
  }
  CommitCopies();
  if (Traits::kPrefetchesInPrologue && first.are_noted)
    SyncGroup<Traits>();  // the addresses are visible
  AttendUnits<Traits>(p, walk, first, finish, shared);
  WaitForCopies<0>();  // first_inert_token, and the unused item of a CTA without units
  __syncthreads();
  const int first_inert_token = shared.first_inert_token;
  if (first_inert_token < p.num_clearable_tokens) ClearTokens<Traits>(p, first_inert_token);
  if (p.follows_sibling) GridDependencySync();
}

template <int kKernel>
cudaError_t LaunchGeneralAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(kAttentionKernels[kKernel].family == KernelFamily::kGeneral);
  using Traits = TileTraits<kKernel>;
  constexpr int kSharedBytes = sizeof(AttentionShared<Traits>);
  static_assert(kSharedBytes <= kAttentionKernels[kKernel].shared_bytes());
  const auto kernel = &AttentionKernel<Traits, GeneralFinish<Traits>>;
  // Applies to the current device. Cheap enough to repeat at each launch.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, UnitWalk<Traits>::GridOf(params.work), Traits::kThreads,
                         kSharedBytes, stream, params);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_CUH_
