// Code of the tier 2 kernels for special units, which may have keys that no row of the tile sees
// between visible keys. Combines the views of all warps, and zeroes values that no row sees.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SPECIAL_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SPECIAL_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/logits.cuh"

namespace reprise {

// Combines the views of kWarps warps. `first`: the view of warp 0.
template <int kWarps>
__device__ __forceinline__ WarpView ViewOfWarps(const WarpView& first, const WarpView* views) {
  WarpView all = first;
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) {
    const WarpView& view = views[w];
    all.has_rows |= view.has_rows;
    all.first_seen_by_all = max(all.first_seen_by_all, view.first_seen_by_all);
    all.last_seen_by_all = min(all.last_seen_by_all, view.last_seen_by_all);
    all.first_seen_by_any = min(all.first_seen_by_any, view.first_seen_by_any);
    all.last_seen_by_any = max(all.last_seen_by_any, view.last_seen_by_any);
  }
  return all;
}

// Adds the warp's seen keys to `all`, which has one bit per key. `seen`: bit n * 2 + j is column n
// * 8 + l % 4 * 2 + j.
template <int kKeys>
__device__ __forceinline__ void NoteSeen(uint32_t seen, uint32_t* all) {
  const int lane = threadIdx.x % 32;
  if (lane >= 4) return;
#pragma unroll
  for (int word = 0; word < kKeys / 32; ++word) {
    uint32_t keys = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t pair = seen >> (word * 8 + n * 2) & 3;
      keys |= pair << (n * 8 + lane * 2);
    }
    atomicOr(&all[word], keys);
  }
}

// Zeroes the V rows of a KV tile whose bit of `seen` is 0. Called by threads 0 to kThreads - 1.
template <typename Traits, int kThreads>
__device__ __forceinline__ void ZeroUnseen(const uint32_t* seen, uint4* values, int thread) {
#pragma unroll 1
  for (int at = thread; at < Traits::kKeys * Traits::kValueChunks; at += kThreads) {
    const int key = at / Traits::kValueChunks;
    if (seen[key / 32] >> key % 32 & 1) continue;
    values[Traits::ValueChunkAt(key, at % Traits::kValueChunks)] = {0, 0, 0, 0};
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SPECIAL_CUH_
