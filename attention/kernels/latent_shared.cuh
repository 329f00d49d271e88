// What the warpgroups of a CTA share: latent_kernel.cuh.

#ifndef ATTENTION_KERNELS_LATENT_SHARED_CUH_
#define ATTENTION_KERNELS_LATENT_SHARED_CUH_

#include <cstdint>

#include "attention/kernels/logits.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/warpgroup_barrier.cuh"
#include "attention/kernels/warpgroup_unit.cuh"

namespace reprise {

// A unit, and what its rows came to: from its last step on.
template <typename Traits>
struct LatentUnit {
  PreparedUnit<Traits> prepared;
  float max[Traits::kRows];
  float sum[Traits::kRows];
};

// Steps are counted over all units of the CTA.
template <typename Traits>
struct LatentShared {
  // One whose results are written, one that is worked on, and the next.
  static constexpr int kUnits = 3;

  // Of which the stages of keys, queries, and results in the place of keys. The weights of a step
  // stand in the last panel of its keys.
  AttentionShared<Traits> attention;

  LatentUnit<Traits> units[kUnits];
  // What out is to be multiplied with before a step is added.
  float rescale[Traits::kStages][Traits::kRows];

  // Found out, and done with by those who weigh and add up.
  BarrierRing<kUnits> unit_ring;
  // Copied, and done with by those who weigh.
  BarrierRing<1> queries;
  // Parts of steps: copied, and done with by those who add up.
  BarrierRing<Traits::kStages * Traits::kParts> keys;
  // Steps: multiplied with the queries.
  BarrierRing<Traits::kStages> logits;
  // Steps: weighed.
  BarrierRing<Traits::kStages> weights;
  // A unit's results are out of the memory of keys; of units that use it, in turns, as a unit
  // without steps may come to its results before the copying warpgroup has seen those of the one
  // before. Every thread that reads them there arrives.
  Barrier results_are_out[2];

  // Of special units (latent_weights.cuh): what all rows of the tile see together, and which keys
  // of a step some row sees.
  WarpView view;
  WarpView warp_views[Traits::kWarpsM];
  uint32_t seen[Traits::kKeys / 32];

  __device__ __forceinline__ LatentUnit<Traits>& unit(int n) { return units[n % kUnits]; }
  __device__ __forceinline__ uint4* stage(int step) {
    return attention.tiles.stages[0][step % Traits::kStages].k();
  }
  __device__ __forceinline__ uint4* q() { return attention.tiles.q; }
};

}  // namespace reprise

#endif  // ATTENTION_KERNELS_LATENT_SHARED_CUH_
