// The two accumulation warpgroups: each accumulates half of the columns of out for 64 rows, from
// the weights and the first columns of the keys. They also write the results, usually while the
// other warpgroups process the next unit.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_SUMS_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_SUMS_CUH_

#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"
#include "reprise/attention/cuda/hopper/wgmma.cuh"
#include "reprise/attention/cuda/mla/mla_results.cuh"
#include "reprise/attention/cuda/mla/mla_shared.cuh"
#include "reprise/attention/tile_schedule/cta_units.h"

namespace reprise {

// sums *= the rescale factors of the KV tile.
template <typename Traits>
__device__ __forceinline__ void RescaleSums(const float (&factors)[Traits::kRows],
                                            MlaSums<Traits>& sums) {
  const int row = WarpRow<Traits>() + threadIdx.x % 32 / 4;
  const float rescale[2] = {factors[row], factors[row + 8]};
  if (__all_sync(kFullWarp, rescale[0] == 1.0f && rescale[1] == 1.0f)) return;
#pragma unroll
  for (int n = 0; n < Traits::kOutTiles; ++n) {
    float(&sum)[4] = sums[n / 16][n % 16];
    sum[0] *= rescale[0];
    sum[1] *= rescale[0];
    sum[2] *= rescale[1];
    sum[3] *= rescale[1];
  }
}

// sums += P V of a KV tile, in the warpgroup's half of the columns.
template <typename Traits>
__device__ __forceinline__ void AddStep(const uint4* stage, MlaSums<Traits>& sums) {
  const uint32_t keys = SharedAddress(stage);
  const auto weights = ProductTile::Rows(keys + Traits::kValuePanels * Traits::kPanelBytes);
  const auto values = ProductTile::Columns(
      keys + threadIdx.x / Traits::kGroupThreads * (Traits::kPartPanels * Traits::kPanelBytes),
      Traits::kPanelBytes);
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < Traits::kKeys / 16; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      WarpgroupProduct<typename Traits::Element, 128>::Columns(
          sums[half], weights.At(k * 32), values.At(half * 2 * Traits::kPanelBytes + k * 16 * 128));
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
}

// Waits for the logits of the next KV tile, if its keys have arrived. Without this wait, both
// warpgroups would accumulate at the same time, and the tensor cores would idle while the next
// weights are computed.
template <typename Traits>
__device__ __forceinline__ void AwaitNextLogits(MlaShared<Traits>& shared, int step) {
  const int last_part = (step + 2) * Traits::kParts - 1;
  const int fill = last_part / (Traits::kStages * Traits::kParts);
  if (__all_sync(kFullWarp, shared.keys.there(last_part).IsOver(fill))) {
    shared.logits.WaitUntilFull(step + 1);
  }
}

// The accumulation warpgroups' loop over the units of the CTA.
template <typename Traits>
__device__ __forceinline__ void AddUpUnits(const AttentionKernelParams& p,
                                           MlaShared<Traits>& shared) {
  const CtaUnits units(p.work, blockIdx.x);
  const int part = threadIdx.x / Traits::kGroupThreads;
  int step = 0;
  int num_indirect = 0;
#pragma unroll 1
  for (int n = 0; n < units.count(); ++n) {
    shared.unit_ring.WaitUntilFull(n);
    MlaUnit<Traits>& unit = shared.unit(n);
    const bool writes_directly = unit.prepared.writes_directly;
    const int end = step + unit.prepared.num_steps;
    MlaSums<Traits> sums = {};
#pragma unroll 1
    for (; step < end; ++step) {
      shared.weights.WaitUntilFull(step);
      if (part == 1 && step + 1 < end) AwaitNextLogits(shared, step);
      RescaleSums<Traits>(shared.rescale[step % Traits::kStages], sums);
      AddStep<Traits>(shared.stage(step), sums);
      shared.keys.free(step * Traits::kParts + part).ArriveAsWarp();
    }
    FinishMlaUnit<Traits>(p, unit, sums, shared, num_indirect);
    if (!writes_directly) ++num_indirect;
    __syncwarp();
    shared.unit_ring.free(n).ArriveAsWarp();
  }
  ClearInertTokens<Traits>(p);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_SUMS_CUH_
