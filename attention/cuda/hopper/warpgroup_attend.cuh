// The consumer warpgroups: each processes 64 rows of a tile against the unit's KV tiles.
//
// MMAs are asynchronous (wgmma). While the tensor cores compute P V of one KV tile and Q K^T of the
// next, the other warpgroup computes its softmax weights (FlashAttention-3, Shah et al. 2024). A
// warpgroup's weights do not overlap its own P V: the code allows it, but the compiler inserts a
// wait for P V, and a version without that wait is not faster.
//
//   KV tile i   start S = Q K(i)^T, out += P(i - 1) V(i - 1)
//               when S is complete: release K(i); logits, mask, P(i)
//               when out is complete: release V(i - 1); rescale out
//
// In plain units in which both warpgroups have rows, they start their MMAs in ping-pong order
// (PingPongOrder). Without it, both would wait for MMAs at the same time, and then compute weights
// at the same time while the tensor cores are idle.
//
// The loop has two instances: for plain units, whose logits are dot products times a scale, and for
// all other units. The code for other units would take registers from the loop of plain units.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ATTEND_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ATTEND_CUH_

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_barrier.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_products.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_shared.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_special.cuh"
#include "reprise/attention/cuda/hopper/wgmma.cuh"

namespace reprise {

// The ping-pong order in which the two consumer warpgroups start MMAs. Used for plain units in
// which both warpgroups have rows. Each warpgroup has a named barrier, with kThreads arrivals:
// 1. Begin(): warpgroup 1 arrives at the barrier of warpgroup 0, so warpgroup 0 starts first.
// 2. Await(): a warpgroup waits at its own barrier until the other warpgroup has arrived there.
// 3. The warpgroup starts its MMAs.
// 4. Pass(): the warpgroup arrives at the barrier of the other warpgroup, which may then start.
//
// Both warpgroups perform the same number of rounds per unit.
template <typename Traits>
class PingPongOrder {
 public:
  // Called once by both warpgroups, before the first Await().
  static __device__ __forceinline__ void Begin() {
    if (threadIdx.x / 128 != 0) Give(0);
  }

  __device__ __forceinline__ PingPongOrder(int warpgroup, bool are_taken)
      : warpgroup_(warpgroup), are_taken_(are_taken) {}

  __device__ __forceinline__ void Await() const {
    if (are_taken_) NamedBarrierSync(Traits::kTurnBarriers + warpgroup_, Traits::kThreads);
  }
  // Called after the warpgroup has started the MMAs of its round.
  __device__ __forceinline__ void Pass() const {
    if (are_taken_) Give(1 - warpgroup_);
  }

 private:
  __device__ __forceinline__ static void Give(int warpgroup) {
    ArriveAt(Traits::kTurnBarriers + warpgroup, Traits::kThreads);
  }

  const int warpgroup_;
  const bool are_taken_;
};

// Computes the attention of a unit for one warpgroup. kPlain: for units that are not special,
// without a softcap.
template <typename Traits, bool kPlain>
class WarpgroupAttention {
 public:
  using Element = typename Traits::Element;

  __device__ __forceinline__ WarpgroupAttention(const AttentionKernelParams& p,
                                                const PreparedUnit<Traits>& prepared,
                                                WarpgroupShared<Traits>& shared)
      : p_(p),
        unit_(prepared.unit),
        shared_(shared),
        is_special_(!kPlain && prepared.is_special),
        warpgroup_(SameInWarp(threadIdx.x / 128)) {
    scale_ = unit_.logit_scale;
    const int row = LaneRow();
    if (is_special_) {
      NoteView();
    } else if (!Traits::kOnlyPlain && unit_.item.row == kSharedRow) {
      scale_ *= p.q_scale.value * p.k_scale.value;
      seen_[0] = KeysSeenBy(unit_, LoadQueryRow(p, unit_, row));
      seen_[1] = KeysSeenBy(unit_, LoadQueryRow(p, unit_, row + 8));
      seen_by_all_ = {INT_MAX, 0};
    } else {
      seen_[0] = prepared.rows[row].seen;
      seen_[1] = prepared.rows[row + 8].seen;
      seen_by_all_ = prepared.seen_by_all[threadIdx.x / 32];
    }
  }

  // Processes all KV tiles of unit `n`. `begin`: the unit's first KV tile, counted over all units.
  // REQUIRES: the arguments are warp-uniform, in a form that the compiler recognises
  // (SameInWarp()).
  __device__ __forceinline__ void Attend(OnlineSoftmax<Traits>& softmax, int n, int begin,
                                         int num_steps) {
    const int end = begin + num_steps;
    const int num_rows = SameInWarp(unit_.num_rows);
    if (OwnFirstRow() >= num_rows || begin == end) return Accompany(begin, end);

    // Special units have no ping-pong order: to zero values, the two warpgroups wait for each other
    // (TakeValues()), and one of them could be waiting for its round. Units with a softcap use the
    // same loop.
    const PingPongOrder<Traits> turns(warpgroup_, kPlain && num_rows > Traits::kRows / 2);
    TakeQueryScales(n);
    float s[Traits::kKeyTiles][4];
    uint32_t p[Traits::kKeys / 16][4];
    float rescale[2];
    int first = unit_.item.key_begin;
    shared_.keys.WaitUntilFull(begin);
    turns.Await();
    StartLogits(n, begin, s);
    turns.Pass();
    WgmmaWait<0>();
    Release(shared_.keys.free(begin));
    Weigh(first, begin, s, softmax, rescale);
    PackWeights(s, p);
#pragma unroll 1
    for (int step = begin + 1; step < end; ++step) {
      shared_.keys.WaitUntilFull(step);
      turns.Await();
      StartLogits(n, step, s);
      TakeValues(step - 1, first);
      StartSum(step - 1, p, softmax.out);
      turns.Pass();
      first += Traits::kKeys;
      WgmmaWait<1>();
      Release(shared_.keys.free(step));
      Weigh(first, step, s, softmax, rescale);
      WgmmaWait<0>();
      Release(shared_.values.free(step - 1));
      PackWeights(s, p);
      softmax.Rescale(rescale);
    }
    TakeValues(end - 1, first);
    StartSum(end - 1, p, softmax.out);
    WgmmaWait<0>();
    Release(shared_.values.free(end - 1));
  }

 private:
  // The first row of this warpgroup in the tile.
  __device__ __forceinline__ int OwnFirstRow() const { return warpgroup_ * 64; }
  // The first of the lane's two rows.
  static __device__ __forceinline__ int LaneRow() {
    return WarpRow<Traits>() + threadIdx.x % 32 / 4;
  }

  // KvLoading::kFp8: loads the factors that undo the loader's scaling of the lane's rows.
  __device__ __forceinline__ void TakeQueryScales(int n) {
    if constexpr (Traits::kArrivesAsFp8) {
      const float* const scales = shared_.query_scales_of(n);
      query_scale_[0] = scales[LaneRow()];
      query_scale_[1] = scales[LaneRow() + 8];
    }
  }

  // The factor of a row's dot products. `r`: one of the lane's two rows.
  __device__ __forceinline__ float RowScale(float scale, int r) const {
    return Traits::kArrivesAsFp8 ? scale * query_scale_[r] : scale;
  }

  // Arrives at the empty barrier of a stage that the warp no longer uses.
  static __device__ __forceinline__ void Release(Barrier& free) { free.ArriveAsWarp(); }

  // Releases all stages of the unit without computing. For a warpgroup without rows in the tile,
  // and for a unit without keys.
  __device__ __forceinline__ void Accompany(int step, int end) const {
    int first = unit_.item.key_begin;
#pragma unroll 1
    for (; step < end; ++step, first += Traits::kKeys) {
      shared_.keys.WaitUntilFull(step);
      Release(shared_.keys.free(step));
      TakeValues(step, first);
      Release(shared_.values.free(step));
    }
  }

  __device__ __forceinline__ auto& StageOf(int step) const {
    return shared_.attention.tiles.stages[0][step % Traits::kStages];
  }

  // s = Q K^T.
  __device__ __forceinline__ void StartLogits(int n, int step,
                                              float (&s)[Traits::kKeyTiles][4]) const {
    const auto q =
        ProductTile::Rows(SharedAddress(shared_.q(n)) + OwnFirstRow() * Traits::kPanelChunks * 16);
    const auto k = ProductTile::Rows(SharedAddress(StageOf(step).k()));
    WgmmaFence();
#pragma unroll
    for (int d = 0; d < Traits::kProductDims / 16; ++d) {
      WarpgroupProduct<Element, Traits::kKeys>::Rows(
          s, q.At(d / 4 * Traits::kQueryPanelBytes + d % 4 * 32),
          k.At(d / 4 * Traits::kPanelBytes + d % 4 * 32), d == 0);
    }
    WgmmaCommit();
  }

  // out += P V.
  __device__ __forceinline__ void StartSum(int step, const uint32_t (&p)[Traits::kKeys / 16][4],
                                           float (&out)[Traits::kOutTiles][4]) const {
    const auto v = ProductTile::Columns(SharedAddress(StageOf(step).v()), Traits::kPanelBytes);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < Traits::kKeys / 16; ++k) {
      WarpgroupProduct<Element, Traits::kOutColumns>::Columns(out, p[k], v.At(k * 16 * 128));
    }
    WgmmaCommit();
  }

  __device__ __forceinline__ static void PackWeights(const float (&s)[Traits::kKeyTiles][4],
                                                     uint32_t (&p)[Traits::kKeys / 16][4]) {
#pragma unroll
    for (int k = 0; k < Traits::kKeys / 16; ++k) {
      p[k][0] = Pack<Element>(s[2 * k][0], s[2 * k][1]);
      p[k][1] = Pack<Element>(s[2 * k][2], s[2 * k][3]);
      p[k][2] = Pack<Element>(s[2 * k + 1][0], s[2 * k + 1][1]);
      p[k][3] = Pack<Element>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
  }

  // Computes the softmax weights of the KV tile at local key `first` from its dot products.
  __device__ __forceinline__ void Weigh(int first, int step, float (&s)[Traits::kKeyTiles][4],
                                        OnlineSoftmax<Traits>& softmax, float (&rescale)[2]) const {
    float scale[2] = {RowScale(scale_ * kLog2E, 0), RowScale(scale_ * kLog2E, 1)};
    if constexpr (Traits::kArrivesAsFp8) {
      // The scale of a row of zeros must not be 0, because 0 times the logit of an unseen key,
      // -inf, is NaN.
      scale[0] = fmaxf(scale[0], FLT_MIN);
      scale[1] = fmaxf(scale[1], FLT_MIN);
    }
    if (!kPlain) {
      QueryRow rows[2] = {{.logit_scale = scale_}, {.logit_scale = scale_}};
      if (is_special_) {
        WgmmaWait<0>();  // function calls need the registers of MMAs in flight
        rows[0] = LoadQueryRow(p_, unit_, LaneRow());
        rows[1] = LoadQueryRow(p_, unit_, LaneRow() + 8);
      }
      rows[0].logit_scale = RowScale(rows[0].logit_scale, 0);
      rows[1].logit_scale = RowScale(rows[1].logit_scale, 1);
      ScaleLogits<Traits>(p_, rows, s);
      scale[0] = scale[1] = 1.0f;
      if (is_special_) MaskSpecial(rows, first, step, s);
    }
    if (!is_special_ && (first < seen_by_all_.begin || first + Traits::kKeys > seen_by_all_.end)) {
      HideUnseen<Traits>(seen_, first, s);
    }
    softmax.WeighScaled(s, scale, rescale);
    ComputeHere(s);
  }

  // Special units:

  // Computes the positions visible to the rows of the tile, over all warps. Called by all consumer
  // threads.
  __device__ __forceinline__ void NoteView() const {
    const QueryRow rows[2] = {LoadQueryRow(p_, unit_, LaneRow()),
                              LoadQueryRow(p_, unit_, LaneRow() + 8)};
    const WarpView own = ViewOf(rows);
    if (threadIdx.x % 32 == 0) shared_.warp_views[threadIdx.x / 32] = own;
    Traits::Sync();
    if (threadIdx.x == 0) {
      shared_.view = ViewOfWarps<Traits::kWarpsM>(own, shared_.warp_views);
    }
    Traits::Sync();
  }

  // Whether some row of the tile does not see every key of the KV tile.
  __device__ __forceinline__ bool IsMasked(int first) const {
    return ViewStep(p_, unit_, shared_.view, first, Traits::kKeys) != StepView::kAll;
  }

  __device__ __forceinline__ void MaskSpecial(const QueryRow (&rows)[2], int first, int step,
                                              float (&s)[Traits::kKeyTiles][4]) const {
    const bool is_masked = IsMasked(first);
    if (!is_masked && p_.alibi_slopes == nullptr) return;
    const uint32_t seen = MaskLogits<Traits>(p_, unit_, rows, first, s);
    if (is_masked) NoteSeen<Traits::kKeys>(seen, shared_.seen[step % 3]);
  }

  // Waits for the values of a KV tile. If the unit is special and the KV tile is masked, then
  // zeroes the values that no row of the tile sees:
  // 1. Each warp has recorded the keys that its rows see (MaskSpecial()).
  // 2. Barrier of the consumers: the bits of all warps are visible.
  // 3. The threads zero unseen values and issue a proxy fence.
  // 4. Barrier of the consumers: MMAs may read the values. The first threads clear the bits.
  __device__ __forceinline__ void TakeValues(int step, int first) const {
    shared_.values.WaitUntilFull(step);
    if (is_special_ && IsMasked(first)) {
      uint32_t* const seen = shared_.seen[step % 3];
      Traits::Sync();
      ZeroUnseen<Traits, Traits::kThreads>(seen, StageOf(step).v(), threadIdx.x);
      FenceProxyAsync();
      Traits::Sync();
      if (threadIdx.x < Traits::kKeys / 32) seen[threadIdx.x] = 0;
    }
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  WarpgroupShared<Traits>& shared_;
  const bool is_special_;
  const int warpgroup_;
  // For units that are not special:
  float scale_;
  SeenKeys seen_[2];      // seen by the lane's rows
  SeenKeys seen_by_all_;  // seen by all rows of the warp
  float query_scale_[2];  // KvLoading::kFp8: by row of the lane
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ATTEND_CUH_
