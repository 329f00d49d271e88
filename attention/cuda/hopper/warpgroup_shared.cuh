// The data that the warpgroups of a CTA share.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SHARED_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_SHARED_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_barrier.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// Chunks of kTiles tiles, aligned as products need them.
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
  // While a unit is prepared and the item of the next one arrives, the two units before are in use.
  static constexpr int kUnits = Traits::kQueryStages + 2;

  // Includes the stages of keys and values, queries, and the results that replace them.
  AttentionShared<Traits> attention;
  MoreTiles<Traits::kQueryStages - 1, kQueryTile> more_queries;
  // KvLoading::kFp8: factors for the products of the rows of q.
  float query_scales[Traits::kArrivesAsFp8 ? Traits::kQueryStages : 1]
                    [Traits::kArrivesAsFp8 ? Traits::kRows : 1];

  PreparedUnit<Traits> units[kUnits];
  // Entries of the block table, ahead of the copies: of a unit's first two steps, and of the even
  // and the odd ones after those; each of a lane's own row, which only that lane reads.
  int32_t blocks[4][Traits::kLoaderThreads];
  // Dealt maps: the item of the unit after the next, for each thread that copies a part of it.
  int32_t next_item[sizeof(WorkItem) / 16];
  BarrierRing<Traits::kQueryStages> queries;  // and the units
  BarrierRing<Traits::kStages> keys;          // steps, counted over all units
  BarrierRing<Traits::kStages> values;
  // Signals that a unit's results, of units that store them in the memory of keys and values, have
  // been read from there. Every thread that reads them arrives.
  Barrier results_are_out;

  // Special units (warpgroup_attend.cuh): what all rows of the tile see together, and which keys of
  // a step some row sees. Three steps are kept, because warpgroups get up to three steps apart.
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
