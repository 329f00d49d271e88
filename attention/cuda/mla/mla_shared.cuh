// Shared memory of the absorbed MLA kernel (mla_kernel.cuh).

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_SHARED_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_SHARED_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_barrier.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"

namespace reprise {

// A unit, and the softmax totals of its rows. The totals are valid after the weights of its last KV
// tile have been stored.
template <typename Traits>
struct MlaUnit {
  PreparedUnit<Traits> prepared;
  float max[Traits::kRows];
  float sum[Traits::kRows];
};

// KV tiles are counted over all units of the CTA.
template <typename Traits>
struct MlaShared {
  // The unit whose results are being written, the current unit, and the next unit.
  static constexpr int kUnits = 3;

  // Includes the stages of keys, the queries, and the results that reuse the memory of keys. The
  // weights of a KV tile overwrite the last panel of its keys.
  AttentionShared<Traits> attention;

  MlaUnit<Traits> units[kUnits];
  // Rescale factors of out, applied before the KV tile is accumulated.
  float rescale[Traits::kStages][Traits::kRows];

  // Full: the unit is prepared. Empty: the softmax and accumulation warpgroups no longer use it.
  BarrierRing<kUnits> unit_ring;
  // Full: the queries are copied. Empty: the softmax warpgroup no longer uses them.
  BarrierRing<1> queries;
  // Parts of KV tiles. Full: the part is copied. Empty: its accumulation warpgroup no longer uses
  // it.
  BarrierRing<Traits::kStages * Traits::kParts> keys;
  // KV tiles. Full: the logits are computed. The empty barriers are not used.
  BarrierRing<Traits::kStages> logits;
  // KV tiles. Full: the weights are stored. The empty barriers are not used.
  BarrierRing<Traits::kStages> weights;
  // For units whose results go through the memory of keys: completes when the results have been
  // read from that memory. Every thread that reads them arrives. Such units alternate between the
  // two barriers: a unit without keys may reach its results before the producer has observed the
  // completion of the previous such unit.
  Barrier results_are_out[2];

  // Special units (mla_weights.cuh): the combined view of all rows of the tile, and the keys of
  // a KV tile that some row sees.
  WarpView view;
  WarpView warp_views[Traits::kWarpsM];
  uint32_t seen[Traits::kKeys / 32];

  __device__ __forceinline__ MlaUnit<Traits>& unit(int n) { return units[n % kUnits]; }
  __device__ __forceinline__ uint4* stage(int step) {
    return attention.tiles.stages[0][step % Traits::kStages].k();
  }
  __device__ __forceinline__ uint4* q() { return attention.tiles.q; }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_SHARED_CUH_
