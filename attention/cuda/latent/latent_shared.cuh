// The data that the warpgroups of a CTA share: latent_kernel.cuh.

#ifndef REPRISE_ATTENTION_CUDA_LATENT_LATENT_SHARED_CUH_
#define REPRISE_ATTENTION_CUDA_LATENT_LATENT_SHARED_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_barrier.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// A unit, and the totals of its rows, which are valid from its last step on.
template <typename Traits>
struct LatentUnit {
  PreparedUnit<Traits> prepared;
  float max[Traits::kRows];
  float sum[Traits::kRows];
};

// Steps are counted over all units of the CTA.
template <typename Traits>
struct LatentShared {
  // One whose results are written, the current one, and the next.
  static constexpr int kUnits = 3;

  // Includes the stages of keys, queries, and the results that replace keys. The weights of a step
  // replace the last panel of its keys.
  AttentionShared<Traits> attention;

  LatentUnit<Traits> units[kUnits];
  // Factors for out, applied before a step is added.
  float rescale[Traits::kStages][Traits::kRows];

  // Filled when prepared; free when the warpgroups that compute weights and add up no longer use
  // them.
  BarrierRing<kUnits> unit_ring;
  // Filled when copied; free when the weighing warpgroup no longer uses them.
  BarrierRing<1> queries;
  // Parts of steps. Filled when copied; free when the adding warpgroups no longer use them.
  BarrierRing<Traits::kStages * Traits::kParts> keys;
  // Steps, filled when multiplied with the queries.
  BarrierRing<Traits::kStages> logits;
  // Steps, filled when their weights are stored.
  BarrierRing<Traits::kStages> weights;
  // Signal that a unit's results have been read from the memory of keys. Units that use it
  // alternate between the two, because a unit without steps may reach its results before the
  // copying warpgroup has seen those of the previous one. Every thread that reads results there
  // arrives.
  Barrier results_are_out[2];

  // Special units (latent_weights.cuh): what all rows of the tile see together, and which keys of a
  // step some row sees.
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

#endif  // REPRISE_ATTENTION_CUDA_LATENT_LATENT_SHARED_CUH_
