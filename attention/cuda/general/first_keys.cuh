// The prologue of kernels that begin ahead (AttentionKernelEntry::begins_ahead()): a CTA prepares its
// first unit before the previous kernel has ended (base/dependent_launch.cuh). A call with few keys
// would otherwise spend a third of its time in this chain: the item, the blocks of its keys, the keys.
//
// Before AwaitKernelBefore() a CTA reads
//   the work map    which is complete: the builder of maps lets no kernel in before its end, and its
//                   threads end after their writes are visible;
//   the block table as it is now. The entries are read again when the previous kernel has ended, and
//                   the keys are copied again if one has changed. Block ids out of range are
//                   replaced, as in KeyPlaces;
//   no keys         but the L2 cache is told to fetch the first ones, at most 26 MB of a launch on an
//                   H200: later writes update the L2 cache.
// Everything else, and all that is read through the L1 cache, comes after it.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_FIRST_KEYS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_FIRST_KEYS_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/key_places.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// Whether the places of the first steps of a CTA's first unit are noted, and by which blocks: `blocks` has
// the block of this thread's key for each stage.
template <typename Traits>
struct FirstKeys {
  bool are_noted = false;
  int blocks[Traits::kStages] = {};
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

// Notes the places of the unit's first steps by the current entries of the table. REQUIRES: the unit is
// complete but for its scales.
template <typename Traits>
__device__ __forceinline__ FirstKeys<Traits> NoteFirstKeys(const AttentionKernelParams& p,
                                                           const WorkUnit& unit,
                                                           AttentionShared<Traits>& shared) {
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const KeyPlaces<Traits> places(p, unit.item, steps.thread);
  const int64_t row = unit.item.table_row * p.block_table_stride;
  FirstKeys<Traits> keys = {.are_noted = true};
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    const int key = steps.first + i * kStride + steps.thread;
    KeyPlace place = {0, 0};
    keys.blocks[i] = 0;
    if (steps.thread < Traits::kKeys && key < unit.item.key_end) {
      const int token = unit.item.first_key + key;
      const int column = p.block_table ? static_cast<int>(p.by_block_size.Divide(token)) : 0;
      if (p.block_table) keys.blocks[i] = LoadEntryOfNow(p.block_table + row + column);
      place = {keys.blocks[i], token - column * p.block_size};
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
  return keys;
}

__device__ __forceinline__ bool HasScalesOnDevice(const AttentionKernelParams& p) {
  return p.q_scale.data != nullptr || p.k_scale.data != nullptr || p.v_scale.data != nullptr;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_FIRST_KEYS_CUH_
