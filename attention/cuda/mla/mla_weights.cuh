// The softmax warpgroup: computes the softmax weights of each KV tile from queries and keys, for
// the accumulation warpgroups.
//
//   KV tile i   S = Q K(i)^T, part by part as the keys arrive; logits, mask, P(i)
//               P(i) overwrites the last panel of K(i), which is not V
//
// In special units (warpgroup_unit.cuh), the softmax warpgroup zeroes the values of keys that no
// row of the tile sees. They may be NaN, and would be accumulated with a weight of 0. In other
// units such keys are not loaded.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_WEIGHTS_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_WEIGHTS_CUH_

#include <climits>
#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_attend.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_special.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_unit.cuh"
#include "reprise/attention/cuda/hopper/wgmma.cuh"
#include "reprise/attention/cuda/mla/mla_shared.cuh"
#include "reprise/attention/tile_schedule/cta_units.h"

namespace reprise {

template <typename Traits>
class MlaSoftmaxWeights {
 public:
  using Element = typename Traits::Element;

  // Number of arrivals at a barrier: kArrivalsOfWarp per warp.
  static constexpr int kArrivals = kArrivalsOfWarp * (Traits::kWeigherThreads / 32);

  // Called by all threads of the warpgroup.
  __device__ __forceinline__ MlaSoftmaxWeights(const AttentionKernelParams& p,
                                               MlaUnit<Traits>& result, MlaShared<Traits>& shared)
      : p_(p),
        result_(result),
        unit_(result.prepared.unit),
        shared_(shared),
        is_special_(result.prepared.is_special) {
    scale_ = unit_.logit_scale;
    const int row = LaneRow();
    if (is_special_) {
      NoteView();
    } else if (unit_.item.row == kSharedRow) {
      scale_ *= p.q_scale.value * p.k_scale.value;
      seen_[0] = KeysSeenBy(unit_, LoadQueryRow(p, unit_, row));
      seen_[1] = KeysSeenBy(unit_, LoadQueryRow(p, unit_, row + 8));
      seen_by_all_ = {INT_MAX, 0};
    } else {
      seen_[0] = result.prepared.rows[row].seen;
      seen_[1] = result.prepared.rows[row + 8].seen;
      seen_by_all_ = result.prepared.seen_by_all[threadIdx.x / 32 % Traits::kWarpsM];
    }
  }

  // Processes all KV tiles of unit `n`. `begin`: the unit's first KV tile, counted over all units.
  __device__ __forceinline__ void Weigh(int n, int begin, int num_steps) {
    shared_.queries.WaitUntilFull(n);
    HeldQueries held;
    if (num_steps > 0) TakeQueries(held);
    OnlineSoftmax<Traits> softmax;
    int first = unit_.item.key_begin;
    const int end = begin + num_steps;
#pragma unroll 1
    for (int step = begin; step < end; ++step, first += Traits::kKeys) {
      float s[Traits::kKeyTiles][4];
      StartLogits(step, held, s);
      WgmmaWait<0>();
      ComputeHere(s);
      Release(shared_.logits.there(step));
      if (step + 1 == end) Release(shared_.queries.free(n));
      float rescale[2];
      FindWeights(first, step, s, softmax, rescale);
      Sync();  // no warp reads the last panel of the keys any more
      LeaveWeights(step, s, rescale);
      if (step + 1 == end) LeaveTotals(softmax);
      FenceProxyAsync();
      __syncwarp();
      Release(shared_.weights.there(step));
    }
    if (num_steps == 0) Release(shared_.queries.free(n));
  }

 private:
  // The first dims of the lane's query rows, in the register layout of the MMA.
  using HeldQueries = uint32_t[Traits::kHeldSteps][4];

  static __device__ __forceinline__ void Sync() {
    NamedBarrierSync(Traits::kWeigherBarrier, Traits::kWeigherThreads);
  }
  static __device__ __forceinline__ int OwnThread() { return threadIdx.x - Traits::kThreads; }
  // The first of the lane's two rows.
  static __device__ __forceinline__ int LaneRow() {
    return WarpRow<Traits>() + threadIdx.x % 32 / 4;
  }
  // Arrives at a barrier for the warp.
  static __device__ __forceinline__ void Release(Barrier& barrier) { barrier.ArriveAsWarp(); }

  __device__ __forceinline__ void TakeQueries(HeldQueries& held) const {
    const int row = WarpRow<Traits>() + threadIdx.x % 16;
#pragma unroll
    for (int d = 0; d < Traits::kHeldSteps; ++d) {
      LoadMatrices(held[d], shared_.q() + Traits::ChunkAt(row, 2 * d + threadIdx.x % 32 / 16));
    }
  }

  // s = Q K^T.
  __device__ __forceinline__ void StartLogits(int step, const HeldQueries& held,
                                              float (&s)[Traits::kKeyTiles][4]) const {
    const auto q = ProductTile::Rows(SharedAddress(shared_.q()));
    const auto k = ProductTile::Rows(SharedAddress(shared_.stage(step)));
    constexpr int kPartSteps = Traits::kPartPanels * 4;
#pragma unroll
    for (int part = 0; part < Traits::kParts; ++part) {
      shared_.keys.WaitUntilFull(step * Traits::kParts + part);
      WgmmaFence();
#pragma unroll
      for (int d = part * kPartSteps; d < (part == 0 ? kPartSteps : Traits::kPanels * 4); ++d) {
        const int at = d / 4 * Traits::kPanelBytes + d % 4 * 32;
        if (d < Traits::kHeldSteps) {
          WarpgroupProduct<Element, Traits::kKeys>::Rows(s, held[d], k.At(at), d == 0);
        } else {
          WarpgroupProduct<Element, Traits::kKeys>::Rows(s, q.At(at), k.At(at), d == 0);
        }
      }
      WgmmaCommit();
    }
  }

  // Computes the softmax weights of the KV tile at local key `first` from its dot products.
  __device__ __forceinline__ void FindWeights(int first, int step, float (&s)[Traits::kKeyTiles][4],
                                              OnlineSoftmax<Traits>& softmax, float (&rescale)[2]) {
    float scale = scale_ * kLog2E;
    if (is_special_ || p_.softcap > 0.0f) {
      QueryRow rows[2] = {{.logit_scale = scale_}, {.logit_scale = scale_}};
      if (is_special_) {
        rows[0] = LoadQueryRow(p_, unit_, LaneRow());
        rows[1] = LoadQueryRow(p_, unit_, LaneRow() + 8);
      }
      ScaleLogits<Traits>(p_, rows, s);
      scale = 1.0f;
      if (is_special_) MaskSpecial(rows, first, step, s);
    }
    if (!is_special_ && (first < seen_by_all_.begin || first + Traits::kKeys > seen_by_all_.end)) {
      HideUnseen<Traits>(seen_, first, s);
    }
    softmax.WeighScaled(s, {scale, scale}, rescale);
  }

  // Stores the weights for the MMA of the accumulation warpgroups, as rows of 128 bytes in the last
  // panel. Stores the rescale factors.
  __device__ __forceinline__ void LeaveWeights(int step, const float (&s)[Traits::kKeyTiles][4],
                                               const float (&rescale)[2]) const {
    const int lane = threadIdx.x % 32;
    auto* const weights = reinterpret_cast<uint32_t*>(shared_.stage(step)) +
                          Traits::kValuePanels * (Traits::kPanelBytes / 4) + lane % 4;
    const int row = LaneRow();
#pragma unroll
    for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        weights[Traits::ChunkAt(row + r * 8, n) * 4] = Pack<Element>(s[n][r * 2], s[n][r * 2 + 1]);
      }
    }
    if (lane % 4 != 0) return;
    float* const factors = shared_.rescale[step % Traits::kStages];
    factors[row] = rescale[0];
    factors[row + 8] = rescale[1];
  }

  __device__ __forceinline__ void LeaveTotals(const OnlineSoftmax<Traits>& softmax) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = QuadSum(softmax.sum[r]);
      if (threadIdx.x % 4 != 0) continue;
      result_.max[LaneRow() + r * 8] = softmax.max[r];
      result_.sum[LaneRow() + r * 8] = sum;
    }
  }

  // Special units:

  __device__ __forceinline__ void NoteView() const {
    const QueryRow rows[2] = {LoadQueryRow(p_, unit_, LaneRow()),
                              LoadQueryRow(p_, unit_, LaneRow() + 8)};
    const WarpView own = ViewOf(rows);
    if (threadIdx.x % 32 == 0) shared_.warp_views[OwnThread() / 32] = own;
    Sync();
    if (OwnThread() == 0) {
      shared_.view = ViewOfWarps<Traits::kWarpsM>(own, shared_.warp_views);
    }
    Sync();
  }

  // Applies ALiBi and masks. If some row does not see all keys of the KV tile, zeroes the values
  // that no row of the tile sees:
  // 1. Each warp records the keys that its rows see.
  // 2. Barrier of the warpgroup: the bits of all warps are visible.
  // 3. The threads zero unseen values.
  // 4. Barrier of the warpgroup: all threads have read the bits. The first threads clear them. A
  //    barrier in Weigh() separates this from the next KV tile.
  __device__ __forceinline__ void MaskSpecial(const QueryRow (&rows)[2], int first, int step,
                                              float (&s)[Traits::kKeyTiles][4]) const {
    const bool is_masked =
        ViewStep(p_, unit_, shared_.view, first, Traits::kKeys) != StepView::kAll;
    if (!is_masked && p_.alibi_slopes == nullptr) return;
    const uint32_t seen = MaskLogits<Traits>(p_, unit_, rows, first, s);
    if (!is_masked) return;
    NoteSeen<Traits::kKeys>(seen, shared_.seen);
    Sync();
    ZeroUnseen<Traits, Traits::kWeigherThreads>(shared_.seen, shared_.stage(step), OwnThread());
    Sync();
    if (OwnThread() < Traits::kKeys / 32) shared_.seen[OwnThread()] = 0;
  }

  const AttentionKernelParams& p_;
  MlaUnit<Traits>& result_;
  const WorkUnit& unit_;
  MlaShared<Traits>& shared_;
  const bool is_special_;
  // For units that are not special:
  float scale_;
  SeenKeys seen_[2];      // seen by the lane's rows
  SeenKeys seen_by_all_;  // seen by all rows of the warp
};

// The softmax warpgroup's loop over the units of the CTA.
template <typename Traits>
__device__ __forceinline__ void WeighUnits(const AttentionKernelParams& p,
                                           MlaShared<Traits>& shared) {
  const CtaUnits units(p.work, blockIdx.x);
  int step = 0;
#pragma unroll 1
  for (int n = 0; n < units.count(); ++n) {
    shared.unit_ring.WaitUntilFull(n);
    MlaUnit<Traits>& unit = shared.unit(n);
    const int num_steps = unit.prepared.num_steps;
    MlaSoftmaxWeights<Traits>(p, unit, shared).Weigh(n, step, num_steps);
    step += num_steps;
    __syncwarp();
    shared.unit_ring.free(n).ArriveAsWarp();
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_WEIGHTS_CUH_
