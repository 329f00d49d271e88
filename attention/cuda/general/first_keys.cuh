// The PDL prologue prefetch (AttentionKernelEntry::prefetches_in_prologue()): a CTA prepares its
// first unit before the previous kernel has ended (base/dependent_launch.cuh). A call with few keys
// would otherwise spend much of its time on this chain of loads: the item, the blocks of its keys,
// the keys. Calls with scales in device memory prepare nothing.
//
// Before GridDependencySync(), a CTA
// 1. reads the tile schedule, which is complete: the kernel that builds schedules triggers its
//    dependents only at its end, and its threads end after their writes are visible;
// 2. reads current entries of the block table. They are read again after the previous kernel has
//    ended, and the keys are copied again if an entry has changed. Block ids out of range are
//    replaced, as in PageLookup;
// 3. prefetches the first keys into the L2 cache, at most 26 MB per launch on an H200. It does not
//    read them, and later writes update the L2 cache.
//
// All other reads come after all earlier work has ended, and so do reads of the block table through
// the L1 cache. A kernel that follows its co-scheduled kernel starts after that work
// (AttentionKernelParams::follows_sibling), so it calls GridDependencySync() only before its end.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_FIRST_KEYS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_FIRST_KEYS_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// Whether the addresses of the first KV tiles of a CTA's first unit are recorded, and the blocks
// that they were computed from: blocks[i] is the block of this thread's key in stage i.
template <typename Traits>
struct FirstKeys {
  bool are_noted = false;
  int blocks[Traits::kStages] = {};
};

// Starts loading `bytes` bytes at `address` into the L2 cache, line by line. A bulk prefetch
// (cp.async.bulk.prefetch) would be slower: it takes one address, so the 32 lanes would issue it
// one after the other.
__device__ __forceinline__ void PrefetchRowToL2(const char* address, int bytes) {
  constexpr int kLineBytes = 128;
#pragma unroll 1
  for (int at = 0; at < bytes; at += kLineBytes) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address + at) : "memory");
  }
}

// Reads an entry that another kernel may be writing. Bypasses the L1 cache, which would keep the
// old value.
__device__ __forceinline__ int LoadEntryOfNow(const int32_t* entry) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(entry) : "memory");
  return value;
}

// Records the key addresses of the unit's first KV tiles from the current block table entries, and
// prefetches these keys into the L2 cache; if dims are in chunks, only the first chunk. REQUIRES:
// all fields of the unit are set; its scales need not be valid.
template <typename Traits>
__device__ __forceinline__ FirstKeys<Traits> NoteFirstKeys(const AttentionKernelParams& p,
                                                           const WorkUnit& unit,
                                                           AttentionShared<Traits>& shared) {
  constexpr int kStride = GroupSteps<Traits>::kStride;
  const GroupSteps<Traits> steps(unit.item);
  const PageLookup<Traits> places(p, unit.item, steps.thread);
  const int64_t row = unit.item.table_row * p.block_table_stride;
  FirstKeys<Traits> keys = {.are_noted = true};
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    const int key = steps.first + i * kStride + steps.thread;
    KeyAddress place = {0, 0};
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
