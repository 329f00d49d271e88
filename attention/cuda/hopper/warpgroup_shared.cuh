// Shared memory of the warpgroup kernels.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SHARED_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SHARED_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_barrier.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// Memory of kTiles tiles, aligned as wgmma requires.
template <int kTiles, int kTileChunks>
struct MoreTiles {
  alignas(1024) uint4 tiles[kTiles][kTileChunks];
  __device__ __forceinline__ uint4* tile(int i) { return tiles[i]; }
};
template <int kTileChunks>
struct MoreTiles<0, kTileChunks> {
  __device__ __forceinline__ uint4* tile(int) { return nullptr; }
};

template <typename Traits>
struct WarpgroupShared {
  static constexpr int kQueryTile = Traits::kRows * Traits::kKeyChunks;
  // kQueryStages units may be in use while one unit is prepared and the item of another arrives.
  static constexpr int kUnits = Traits::kQueryStages + 2;

  // Includes the stages of keys and values, the first stage of queries, and the results that reuse
  // their memory.
  AttentionShared<Traits> attention;
  MoreTiles<Traits::kQueryStages - 1, kQueryTile> more_queries;
  // KvLoading::kFp8: factors of the logits of each query row.
  float query_scales[Traits::kArrivesAsFp8 ? Traits::kQueryStages : 1]
                    [Traits::kArrivesAsFp8 ? Traits::kRows : 1];

  PreparedUnit<Traits> units[kUnits];
  // Block table entries, loaded ahead of the copies: [0] and [1] for a unit's first two KV tiles,
  // [2] and [3] for later even and odd KV tiles. Each entry is for one lane's row, and only that
  // lane reads it.
  int32_t blocks[4][Traits::kLoaderThreads];
  // Round-robin schedules: the item index of the next unit to be fetched, one copy per thread that
  // copies a part of the item.
  int32_t next_item[sizeof(WorkItem) / 16];
  BarrierRing<Traits::kQueryStages> queries;  // also guards units
  BarrierRing<Traits::kStages> keys;          // KV tiles, counted over all units
  BarrierRing<Traits::kStages> values;
  // For units whose results go through the memory of keys and values: completes when the results
  // have been read from that memory. Every thread that reads them arrives.
  Barrier results_are_out;

  // Special units (warpgroup_attend.cuh): the combined view of all rows of the tile, and the keys
  // of a KV tile that some row sees. The keys of three KV tiles are kept, because one warpgroup may
  // be two KV tiles ahead of the other.
  WarpView view;
  WarpView warp_views[Traits::kWarpsM];
  uint32_t seen[3][Traits::kKeys / 32];

  __device__ __forceinline__ PreparedUnit<Traits>& unit(int n) { return units[n % kUnits]; }
  __device__ __forceinline__ uint4* q(int n) {
    const int stage = n % Traits::kQueryStages;
    return stage == 0 ? attention.tiles.q : more_queries.tile(stage - 1);
  }
  __device__ __forceinline__ float* query_scales_of(int n) {
    return query_scales[n % Traits::kQueryStages];
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SHARED_CUH_
