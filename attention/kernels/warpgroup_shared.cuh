// What the warpgroups of a CTA share.

#ifndef ATTENTION_KERNELS_WARPGROUP_SHARED_CUH_
#define ATTENTION_KERNELS_WARPGROUP_SHARED_CUH_

#include <cstdint>

#include "attention/kernels/logits.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/warpgroup_barrier.cuh"
#include "attention/kernels/warpgroup_unit.cuh"

namespace reprise {

template <typename Traits>
struct WarpgroupShared {
  static constexpr int kQueryTile = Traits::kRows * Traits::kKeyChunks;
  // A unit is prepared while queries of the two before it are in use, and slow warps still write
  // out the one before those.
  static constexpr int kUnits = Traits::kQueryStages + 2;

  // Of which the stages of keys and values, queries, and results in their place.
  AttentionShared<Traits> attention;
  alignas(1024) uint4 more_queries[Traits::kQueryStages - 1][kQueryTile];
  // KvLoading::kFp8: what the products of the rows of q are to be multiplied with.
  float query_scales[Traits::kArrivesAsFp8 ? Traits::kQueryStages : 1]
                    [Traits::kArrivesAsFp8 ? Traits::kRows : 1];

  PreparedUnit<Traits> units[kUnits];
  BarrierRing<Traits::kQueryStages> queries;  // and the units
  BarrierRing<Traits::kStages> keys;          // steps, counted over all units
  BarrierRing<Traits::kStages> values;
  // A unit's results are out of the memory of keys and values; of units that use it. Every
  // thread that reads them there arrives.
  Barrier results_are_out;

  // Of special units (warpgroup_attend.cuh): what all rows of the tile see together, and which keys
  // of a step some row sees. Of three steps, which is as far apart as warpgroups get.
  WarpView view;
  WarpView warp_views[Traits::kWarpsM];
  uint32_t seen[3][Traits::kKeys / 32];

  __device__ __forceinline__ PreparedUnit<Traits>& unit(int n) { return units[n % kUnits]; }
  __device__ __forceinline__ uint4* q(int n) {
    const int stage = n % Traits::kQueryStages;
    return stage == 0 ? attention.tiles.q : more_queries[stage - 1];
  }
  __device__ __forceinline__ float* query_scales_of(int n) {
    return query_scales[n % Traits::kQueryStages];
  }
};

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WARPGROUP_SHARED_CUH_
