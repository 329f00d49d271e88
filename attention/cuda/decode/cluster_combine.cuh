// The DSMEM reduction: the CTAs of a cluster, which have the KV splits of one Q tile, combine the
// splits by reading each other's shared memory (attention/tile_schedule/tile_schedule.h,
// "Clusters"). A combine through global memory takes a store, an atomic and a load in sequence,
// each with the latency of the L2 cache, and often a single CTA performs it. A cluster synchronises
// in a fraction of that time, and each CTA with a split combines a part of the Q tile's out.
//
// Protocol of FinishInCluster(). A CTA without a unit takes part in the barriers only, and a CTA
// with an unsplit Q tile writes its result before the first barrier.
// 1. Each CTA writes its split's out and lse to its shared memory.
// 2. Cluster barrier: all CTAs arrive and wait. The splits are visible to the cluster.
// 3. Each CTA reads its part of out from all splits, combines it and writes it, and lse.
// 4. Cluster barrier: all CTAs arrive after their reads and wait. No CTA ends or overwrites its
//    shared memory while another CTA reads it.
//
// Bound: the latency of two cluster barriers and one read of another CTA's shared memory.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_CLUSTER_COMBINE_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_CLUSTER_COMBINE_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/unit_results.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/cluster.cuh"

namespace reprise {

// Adds up the sums of the CTA's warp groups in place, and stores the split's lse in results.lse.
// Called by all threads, after a barrier; needs a barrier before other threads read the results.
template <typename Traits>
__device__ __forceinline__ void LeaveSplit(const AttentionKernelParams& p, const WorkUnit& unit,
                                           typename AttentionShared<Traits>::Results& results) {
  WeighRows<Traits>(unit, results, [&](int r, const RowTotal& total) {
    return FinishPartialRow<Traits>(total, results.lse[r]);
  });
  ForColumns<Traits>(p, unit, [&](int r, int column) {
    float value[4];
    AddGroups<Traits>(results, r, column, value);
    *reinterpret_cast<float4*>(&results.out[0][r][column]) = {value[0], value[1], value[2],
                                                              value[3]};
  });
}

// Combines this CTA's part of out (groups of 4 columns of a row) over all splits of the Q tile, and
// writes it. The CTA of cluster rank n has split n. Called by all threads, after the cluster
// barrier.
template <typename Traits>
__device__ __forceinline__ void AddSplits(
    const AttentionKernelParams& p, const WorkUnit& unit,
    const typename AttentionShared<Traits>::Results& results) {
  constexpr int kRowParts = Traits::kHeadDimV / 4;
  const int num_splits = unit.item.num_partials;
  const int num_parts = unit.num_rows * kRowParts;
  const int of_cta = (num_parts + num_splits - 1) / num_splits;
  const int begin = static_cast<int>(ClusterRank()) * of_cta;
  const int end = min(num_parts, begin + of_cta);
#pragma unroll 1
  for (int at = begin + static_cast<int>(threadIdx.x); at < end; at += Traits::kThreads) {
    const int r = at / kRowParts;
    const int column = at % kRowParts * 4;
    if (column >= p.head_dim_v) continue;
    const uint32_t lse_here = SharedAddress(&results.lse[r]);
    const uint32_t out_here = SharedAddress(&results.out[0][r][column]);
    float lse[kMaxClusterQueues];
    float4 out[kMaxClusterQueues];
#pragma unroll
    for (int n = 0; n < kMaxClusterQueues; ++n) {
      lse[n] = -INFINITY;
      out[n] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (n >= num_splits) continue;
      lse[n] = LoadInCluster(ClusterAddress(lse_here, n));
      out[n] = Load4InCluster(ClusterAddress(out_here, n));
    }
    RowTotal total = {-INFINITY, 0.0f};
#pragma unroll
    for (int n = 0; n < kMaxClusterQueues; ++n) total.max = fmaxf(total.max, lse[n]);
    const float reference = Reference(total.max);
    float value[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < kMaxClusterQueues; ++n) {
      const float weight = Exp2<Traits>(lse[n] - reference);
      total.sum += weight;
      value[0] = fmaf(weight, out[n].x, value[0]);
      value[1] = fmaf(weight, out[n].y, value[1]);
      value[2] = fmaf(weight, out[n].z, value[2]);
      value[3] = fmaf(weight, out[n].w, value[3]);
    }
    const TileRow row = RowAt(p, unit, r);
    const float factor = FinishRow(p, unit, row, total);
#pragma unroll
    for (int e = 0; e < 4; ++e) value[e] *= factor;
    StoreColumns<Traits>(p, OutAt(p, row), column, value);
  }
}

// The epilogue of a unit in a cluster, instead of FinishThroughShared(). Each CTA calls it at most
// once, with all threads; a CTA without a unit calls SyncClusterWithoutUnit(). REQUIRES: Q tiles
// have clusters (KernelSchedule::counts); out has no block scales.
template <typename Traits>
__device__ __forceinline__ void FinishInCluster(const AttentionKernelParams& p,
                                                const WorkUnit& unit,
                                                const OnlineSoftmax<Traits>& softmax,
                                                AttentionShared<Traits>& shared) {
  const bool is_split = unit.item.partial >= 0;
  Traits::Sync();  // the results reuse the memory of the keys
  LeaveResults<Traits>(unit, softmax, shared.results);
  Traits::Sync();
  if (is_split) {
    LeaveSplit<Traits>(p, unit, shared.results);
  } else {
    WriteUnit<Traits>(p, unit, shared.results);
  }
  ArriveAtCluster();
  AwaitCluster();
  if (is_split) AddSplits<Traits>(p, unit, shared.results);
  ArriveAfterReads();
  AwaitCluster();  // the cluster has read this CTA's memory
}

// The cluster barriers of FinishInCluster(), for a CTA without a unit.
__device__ __forceinline__ void SyncClusterWithoutUnit() {
  ArriveAtCluster();
  AwaitCluster();
  ArriveAfterReads();
  AwaitCluster();
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_CLUSTER_COMBINE_CUH_
