// The merge of few partials (attention/cuda/general/partial_merge.cuh has the others): a thread
// requests all partials of several rows at a time, so that it waits for the L2 cache once or twice,
// and not once for each of its rows, of which it has up to eight.

#ifndef ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_
#define ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_

#include <cmath>
#include <cstdint>

#include "attention/cuda/general/attention_kernel_params.h"
#include "attention/cuda/general/device_primitives.cuh"
#include "attention/cuda/general/online_softmax.cuh"
#include "attention/cuda/general/partial_merge.cuh"
#include "attention/cuda/general/tile_traits.cuh"
#include "attention/cuda/general/unit_results.cuh"
#include "attention/cuda/general/work_unit.cuh"

namespace reprise {

// Adds up the partials of a unit's rows in key order and writes the results out.
template <typename Traits>
class FewPartialsAdder {
 public:
  // The most partials of a row: of four rows they fit in the memory.
  static constexpr int kMost = AttentionShared<Traits>::kMergeSlots / 4;

  __device__ __forceinline__ FewPartialsAdder(const AttentionKernelParams& p, const WorkUnit& unit,
                                              const PartialList& list,
                                              AttentionShared<Traits>& shared)
      : p_(p), unit_(unit), list_(list), shared_(shared) {}

  // Called by all threads. REQUIRES: 1 to kMost partials; no block scales of out.
  __device__ __forceinline__ void Run() const {
    const int num_parts = unit_.num_rows * kRowParts;
    const int at_once = min(kRows, AttentionShared<Traits>::kMergeSlots / list_.count);
#pragma unroll 1
    for (int first = threadIdx.x; first - static_cast<int>(threadIdx.x) < num_parts;
         first += at_once * Traits::kThreads) {
      float lse[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int part = first + i * Traits::kThreads;
        lse[i] = i < at_once ? Fetch(part, num_parts, i) : -INFINITY;
      }
      CommitCopies();
      WaitForCopies<0>();
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int part = first + i * Traits::kThreads;
        if (i < at_once && part - part % 32 < num_parts) Add(part, num_parts, i, lse[i]);
      }
    }
  }

 private:
  static constexpr int kRows = 8;  // of a thread at a time
  static constexpr int kRowParts = Traits::kHeadDimV / 4;
  // Threads of a warp with the same row: each has the lse of one partial.
  static constexpr int kLanes = kRowParts < 32 ? kRowParts : 32;
  static_assert(kMost <= kLanes);

  __device__ __forceinline__ TileRow RowOf(int part, int num_parts) const {
    return RowAt(p_, unit_, min(part, num_parts - 1) / kRowParts);
  }
  __device__ __forceinline__ uint4* Slot(int i) const {
    return shared_.merge.slots[i * list_.count] + threadIdx.x;
  }

  // Starts the copies of a part, 4 columns of a row, and returns this lane's lse of the row.
  __device__ __forceinline__ float Fetch(int part, int num_parts, int i) const {
    if (part - part % 32 >= num_parts) return -INFINITY;  // for whole warps
    const int column = part % kRowParts * 4;
    const bool is_there = part < num_parts && column < p_.head_dim_v;
    const int64_t first = PartialAt(p_.work, list_.first, RowOf(part, num_parts));
    const int64_t pitch = PartialPitch(p_.head_dim_v);
    const float* out = p_.work.partial_out + first * pitch + (is_there ? column : 0);
    uint32_t slot = SharedAddress(Slot(i));
#pragma unroll 4
    for (int n = 0; n < list_.count; ++n) {
      CopyAsync16(slot, out, true);
      slot += Traits::kThreads * 16;
      out += list_.stride * pitch;
    }
    const int lane = threadIdx.x % kLanes;
    if (lane >= list_.count) return -INFINITY;
    return __ldcg(p_.work.partial_lse + first + lane * list_.stride);
  }

  // Adds up a part whose copies have arrived.
  __device__ __forceinline__ void Add(int part, int num_parts, int i, float own_lse) const {
    RowTotal total = {own_lse, 0.0f};
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      total.max = fmaxf(total.max, __shfl_xor_sync(kFullWarp, total.max, distance));
    }
    const float own_weight = Exp2<Traits>(own_lse - Reference(total.max));
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint4* slot = Slot(i);
#pragma unroll 4
    for (int n = 0; n < list_.count; ++n) {
      const float weight = __shfl_sync(kFullWarp, own_weight, n, kLanes);
      const float4 value = *reinterpret_cast<const float4*>(slot + n * Traits::kThreads);
      total.sum += weight;
      sum[0] = fmaf(weight, value.x, sum[0]);
      sum[1] = fmaf(weight, value.y, sum[1]);
      sum[2] = fmaf(weight, value.z, sum[2]);
      sum[3] = fmaf(weight, value.w, sum[3]);
    }
    const int column = part % kRowParts * 4;
    if (part >= num_parts || column >= p_.head_dim_v) return;
    const TileRow row = RowOf(part, num_parts);
    const float factor = FinishRow(p_, unit_, row, total);
#pragma unroll
    for (int e = 0; e < 4; ++e) sum[e] *= factor;
    StoreColumns<Traits>(p_, OutAt(p_, row), column, sum);
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const PartialList& list_;
  AttentionShared<Traits>& shared_;
};

// In place of that of partial_merge.cuh.
template <typename Traits>
requires(Traits::kAddsPartialsAtOnce) __device__ __forceinline__
    void MergePartials(const AttentionKernelParams& p, const WorkUnit& unit,
                       const MergePoint& point, AttentionShared<Traits>& shared) {
  if (point.to < 0 && point.shared.count == 0 && p.out_block_scales == nullptr &&
      point.own.count <= FewPartialsAdder<Traits>::kMost) {
    FewPartialsAdder<Traits>(p, unit, point.own, shared).Run();
    return;
  }
  PartialAdder<Traits>(p, unit, point, shared).Run();
  WaitForCopies<0>();  // empty groups
  if (point.to < 0 && p.out_block_scales != nullptr) {
    Traits::Meet();
    StoreBlocks<Traits>(p, unit, shared.results);
  }
}

}  // namespace reprise

#endif  // ATTENTION_CUDA_VERIFY_VERIFY_MERGE_CUH_
