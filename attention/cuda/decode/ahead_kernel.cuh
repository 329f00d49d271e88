// The general kernel (attention/cuda/general/attention_kernel.cuh) for tiles of few rows, whose
// loads are direct. Same maths; what differs is the begin of a CTA's first unit, which is prepared
// before the kernel before this one has ended (base/dependent_launch.cuh). A call of few keys spends
// a third of its time in this chain: the item, its keys' blocks, the keys.
//
// Before AwaitKernelBefore() a CTA reads
//   the work map    which is complete: the builder of maps lets no kernel in before its end, and its
//                   threads end after their writes are visible;
//   the block table as it is now. The entries are read again when the kernel before has ended, and
//                   the keys are copied again if one has changed. Block ids out of range are
//                   replaced, as in KeyPlaces;
//   no keys         but the L2 cache is told to fetch the first ones, at most 26 MB of a launch on an
//                   H200: later writes update the L2 cache.
// Everything else, and all that is read through the L1 cache, comes after it.
//
// Launches for few rows are in clusters, whose CTAs merge the pieces of a range among themselves
// where the map says so (cluster_merge.cuh). Other pieces of many rows, or of many keys, are merged by
// all CTAs that have some (joint_merge.cuh).

#ifndef REPRISE_ATTENTION_CUDA_DECODE_AHEAD_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_AHEAD_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/attention/cuda/decode/cluster_merge.cuh"
#include "reprise/attention/cuda/decode/joint_merge.cuh"
#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/group_barrier.cuh"
#include "reprise/attention/cuda/general/key_loader.cuh"
#include "reprise/attention/cuda/general/key_places.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/products.cuh"
#include "reprise/attention/cuda/general/query_loader.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/cluster.cuh"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

// A decode tile with twice as many groups of warps, one CTA a multiprocessor and three stages: three
// times as many keys are under way. For rows of few KV heads, whose CTAs do not fill the card (IsWide()
// of attention/work_map/work_map.h).
template <typename Base>
struct WideTraits : Base {
  static constexpr AttentionTile Widened() {
    AttentionTile tile = Base::kTile;
    tile.warps_n *= 2;
    tile.ctas_per_sm = 1;
    return tile;
  }
  static constexpr AttentionTile kTile = Widened();
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kThreads = Base::kThreads * 2;
  static constexpr int kStages = 3;
  static constexpr int kOffsetSteps = kStages;

  static_assert(Base::kRows * Base::kKeyChunks % kThreads == 0, "every thread copies as much of q");
};

// Whether a tile has a form with WideTraits.
template <typename Traits>
inline constexpr bool kMayBeWide =
    Traits::kRows == kDecodeRows&& Traits::kHeadDimQk == kHeadDimOfWideTiles;

// The blocks of this thread's keys of a unit's first steps, one for each stage.
template <typename Traits>
struct FirstBlocks {
  int of[Traits::kStages];
};

// Starts loading `bytes` from `address` on into the L2 cache. By lines, as the instruction for many bytes
// (cp.async.bulk.prefetch) takes one address at a time: 32 lanes issue it one after the other.
__device__ __forceinline__ void PrefetchRowToL2(const char* address, int bytes) {
  constexpr int kLineBytes = 128;
#pragma unroll 1
  for (int at = 0; at < bytes; at += kLineBytes) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address + at) : "memory");
  }
}

// Reads an entry that another kernel may be writing, not by way of the L1 cache, where it would stay.
__device__ __forceinline__ int LoadEntryOfNow(const int32_t* entry) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(entry) : "memory");
  return value;
}

// Notes the places of the unit's first steps by the table's entries of now. REQUIRES: the unit is
// complete but for its scales.
template <typename Traits>
__device__ __forceinline__ FirstBlocks<Traits> NoteAhead(const AttentionKernelParams& p,
                                                         const WorkUnit& unit,
                                                         AttentionShared<Traits>& shared) {
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const KeyPlaces<Traits> places(p, unit.item, steps.thread);
  const int64_t row = unit.item.table_row * p.block_table_stride;
  FirstBlocks<Traits> blocks;
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    const int key = steps.first + i * kStride + steps.thread;
    KeyPlace place = {0, 0};
    blocks.of[i] = 0;
    if (steps.thread < Traits::kKeys && key < unit.item.key_end) {
      const int token = unit.item.first_key + key;
      const int column = p.block_table ? static_cast<int>(p.by_block_size.Divide(token)) : 0;
      if (p.block_table) blocks.of[i] = LoadEntryOfNow(p.block_table + row + column);
      place = {blocks.of[i], token - column * p.block_size};
    }
    places.Note(shared.offsets[steps.group][i], place);
    if (steps.thread >= Traits::kKeys || key >= unit.item.key_end) continue;
    const KeyOffsets offset = shared.offsets[steps.group][i][steps.thread];
    constexpr int64_t kBytes = Traits::kStoredBytes;
    PrefetchRowToL2(
        static_cast<const char*>(p.k.data) + unit.kv_head * p.k.head_stride * kBytes + offset.k,
        min(p.head_dim_qk, p.k.dim_chunk) * static_cast<int>(kBytes));
    PrefetchRowToL2(
        static_cast<const char*>(p.v.data) + unit.kv_head * p.v.head_stride * kBytes + offset.v,
        min(p.head_dim_v, p.v.dim_chunk) * static_cast<int>(kBytes));
  }
  return blocks;
}

// AttendKeys() of attention_kernel.cuh. `is_noted`: the first places are, by `blocks`.
template <typename Traits>
__device__ __forceinline__ void AttendKeysAhead(const AttentionKernelParams& p,
                                                const WorkUnit& unit,
                                                AttentionShared<Traits>& shared, bool is_noted,
                                                const FirstBlocks<Traits>& blocks,
                                                OnlineSoftmax<Traits>& softmax) {
  static_assert(!Traits::kConverts);
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const int first = steps.first;
  const KeyPlaces<Traits> places(p, unit.item, steps.thread);
  const KeyLoader<Traits> loader(p, unit, steps.thread);
  auto* const offsets = shared.offsets[steps.group];
  auto* const stages = shared.tiles.stages[steps.group];
  const uint4* const q = shared.tiles.q + WarpRow<Traits>() * Traits::kKeyChunks;
  const auto load_step = [&](int i) {
    if (i < steps.count) {
      loader.Load(stages[i].k(), stages[i].v(), offsets[i], first + i * kStride);
    }
  };

  // Where the places are noted, the reads of the first ones only check them, behind the copies.
  KeyPlace first_places[Traits::kStages];
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) first_places[i] = places.Find(first + i * kStride);
  KeyPlace place = places.Find(first + Traits::kStages * kStride);
  const auto note = [&] {
#pragma unroll
    for (int i = 0; i < Traits::kStages; ++i) places.Note(offsets[i], first_places[i]);
    MeetGroup<Traits>();
  };
  if (!is_noted) note();
  load_step(0);
  if constexpr (!Traits::kFp8) LoadQueries<Traits>(p, unit, shared.tiles.q);
  CommitCopies();
#pragma unroll
  for (int i = 1; i < Traits::kStages; ++i) {
    load_step(i);
    CommitCopies();
  }
  if constexpr (Traits::kFp8) {
    LoadScaledQueries<Traits>(p, unit, shared.tiles.q, shared.row_scales);
  }
  LaneRows first_rows = LoadLaneRows<Traits>(p, unit);
  StepTerms terms = TermsOf(p, unit, first_rows);
  bool has_changed = false;
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    has_changed |= is_noted && first_places[i].block != blocks.of[i];
  }
  WaitForCopies<Traits::kStages - 1>();  // the queries and the first step
  if (__syncthreads_or(has_changed)) {
    WaitForCopies<0>();  // nothing may be in flight to the places of other keys
    __syncthreads();
    note();
#pragma unroll 1
    for (int i = 0; i < Traits::kStages; ++i) {
      load_step(i);
      CommitCopies();
    }
  }
  SetScales(shared, first_rows, terms);
  Products<Traits> products(p);
  TakeQueries<Traits>(products, q);
  const TileContext<Traits> tile = {p, unit, q, products, shared, softmax};
  AttendSteps<Traits>(tile, steps, places, loader, place, terms);
}

__device__ __forceinline__ bool HasScalesOnDevice(const AttentionKernelParams& p) {
  return p.q_scale.data != nullptr || p.k_scale.data != nullptr || p.v_scale.data != nullptr;
}

// Whether the CTA has to meet the others of its cluster. The same for all of them.
__device__ __forceinline__ bool MergesInCluster(const AttentionKernelParams& p) {
  return ClusterSize() > 1 && p.out_block_scales == nullptr && p.work.counts[4] != 0;
}

// REQUIRES: a grid of all columns of the map, or of those in use: in clusters of params.cluster, or of
// wide CTAs.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kTile.ctas_per_sm)
    AheadKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<AttentionShared<Traits>*>(shared_memory);
  PrepareToMeet<Traits>();
  LetNextKernelIn();
  const TileMap& work = p.work;
  ColumnWalk walk(work);
  // Scales on the device may be written by the kernel before.
  bool is_noted = walk.HasUnit() && !HasScalesOnDevice(p);
  LoadItem(ColumnWalk::FirstItem(work), shared.units[0]);
  CommitCopies();
  bool meets_cluster = MergesInCluster(p);
  FirstBlocks<Traits> blocks = {};
  if (is_noted) {
    WaitForCopies<0>();
    __syncthreads();
    if (threadIdx.x == 0) CompleteUnit<Traits>(p, walk.Head(), shared.units[0]);
    __syncthreads();
    blocks = NoteAhead<Traits>(p, shared.units[0], shared);
  }
  // Before its sibling, nothing is left to wait for.
  if (!p.follows_sibling) AwaitKernelBefore();

  if (threadIdx.x == 0) {
    CopyAsync4(SharedAddress(&shared.first_inert_token), p.query_start_loc + p.num_rows);
  }
  CommitCopies();
  if (is_noted) MeetGroup<Traits>();  // the places are noted
  int slot = 0;
#pragma unroll 1
  while (walk.HasUnit()) {
    WorkUnit& unit = shared.units[slot];
    if (!is_noted) {
      WaitForCopies<0>();
      __syncthreads();  // the item has arrived, and the previous unit's results are written
      if (threadIdx.x == 0) CompleteUnit<Traits>(p, walk.Head(), unit);
    }
    walk.Next();
    slot ^= 1;
    if (walk.HasUnit()) LoadItem(work.items + walk.Item(), shared.units[slot]);
    if (!is_noted) __syncthreads();  // the unit is complete
    OnlineSoftmax<Traits> softmax;
    AttendKeysAhead<Traits>(p, unit, shared, is_noted, blocks, softmax);
    if (meets_cluster) {
      FinishInCluster<Traits>(p, unit, softmax, shared);
      meets_cluster = false;
    } else {
      LeaveUnit<Traits>(p, unit, softmax, shared);
      if (unit.item.is_joint != 0 && p.out_block_scales == nullptr) {
        ArriveAndMergeJointly<Traits>(p, unit, !walk.HasUnit(), shared);
      } else if (unit.item.partial >= 0) {
        ArriveAndMerge<Traits>(p, unit, shared);
      }
    }
    is_noted = false;
  }
  if (meets_cluster) MeetClusterWithoutUnit();
  WaitForCopies<0>();  // also those of an item past the last
  __syncthreads();
  const int first_inert_token = shared.first_inert_token;
  if (first_inert_token < p.num_out_tokens) ClearTokens<Traits>(p, first_inert_token);
  if (p.follows_sibling) AwaitKernelBefore();
}

// What a CTA may have: on the smaller cards of compute capability 8.x, and for wide CTAs.
inline constexpr int kMostSharedBytes = 99 * 1024;
inline constexpr int kMostWideSharedBytes = 227 * 1024;

// The same for the current device.
inline cudaError_t FindMostSharedBytes(int& bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// `columns`: of the grid.
template <typename Traits>
cudaError_t LaunchAheadColumns(const AttentionKernelParams& params, int columns,
                               cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(AttentionShared<Traits>);
  static_assert(kSharedBytes <=
                (Traits::kTile.ctas_per_sm > 1 ? kMostSharedBytes : kMostWideSharedBytes));
  const auto kernel = &AheadKernel<Traits>;
  // Cheap, and correct for whichever device is current.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(params.work.heads_per_column, columns);
  if (params.cluster == 1) {
    return LaunchDependent(kernel, grid, Traits::kThreads, kSharedBytes, stream, params);
  }
  return LaunchDependentClusters(kernel, grid, dim3(1, params.cluster), Traits::kThreads,
                                 kSharedBytes, stream, params);
}

template <typename Traits>
cudaError_t LaunchAhead(const AttentionKernelParams& params, cudaStream_t stream) {
  const TileMap& work = params.work;
  if (!params.is_wide) {
    return LaunchAheadColumns<Traits>(params, ColumnsInUse(work, params.cluster), stream);
  }
  // A plan that was not told of the device may be wrong about it.
  int most_shared_bytes = 0;
  const cudaError_t error = FindMostSharedBytes(most_shared_bytes);
  if (error != cudaSuccess) return error;
  if constexpr (kMayBeWide<Traits>) {
    if (most_shared_bytes >= kMostWideSharedBytes) {
      return LaunchAheadColumns<WideTraits<Traits>>(params, work.wide_columns, stream);
    }
  }
  return LaunchAheadColumns<Traits>(params, work.wide_columns, stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_AHEAD_KERNEL_CUH_
