// The kernels of KernelFamily::kDecode, for decodes and for the verification of drafts. They are
// the general kernel (attention/cuda/general/attention_kernel.cuh) with a PDL prologue prefetch
// (first_keys.cuh) and two additional ways to combine partials.
//
// Bound: memory, and for few rows also the combine of partials. For up to 16 query rows, a CTA has
// four warps (WideTraits: eight), and each warp loads different keys. For 17 to 32 query rows, a
// CTA has two groups of two warps. Both warps of a group read the same KV tile from shared memory:
// 64 keys for head_dim 64 or fp8, and 32 keys otherwise. The groups do not synchronise in the loop
// over KV tiles.
//
// Launches for few rows may have clusters. If the tile schedule assigns clusters to Q tiles, the
// CTAs of a cluster combine the splits through DSMEM (cluster_combine.cuh). Outside clusters, a Q
// tile with many query rows, many splits or long splits (CombinesCooperatively()) is combined by
// the CTAs that have its splits (cooperative_combine.cuh). If out has block scales, partials are
// combined only as in the general kernel.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "reprise/attention/cuda/decode/cluster_combine.cuh"
#include "reprise/attention/cuda/decode/cooperative_combine.cuh"
#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/cluster.cuh"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

// A decode tile with eight warps instead of four, one CTA per SM, and three stages: three times the
// keys in flight per CTA. For rows with few KV heads, whose CTAs do not fill the card (IsWide() of
// attention/tile_schedule/tile_schedule.h).
template <typename Base>
struct WideTraits : Base {
  static constexpr AttentionTile Widened() {
    AttentionTile tile = Base::kTile;
    tile.warps_n *= 2;
    tile.ctas_per_sm = 1;
    return tile;
  }
  static constexpr AttentionTile kTile = Widened();
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kThreads = Base::kThreads * 2;
  static constexpr int kStages = 3;
  static constexpr int kOffsetSteps = kStages;

  static_assert(Base::kRows * Base::kKeyChunks % kThreads == 0,
                "every thread copies the same number of chunks of q");
};

// Whether a tile has a variant with WideTraits.
template <typename Traits>
inline constexpr bool kMayBeWide =
    Traits::kRows == kDecodeRows&& Traits::kHeadDimQk == kHeadDimOfWideTiles;

// Whether the CTA must synchronise with its cluster. All CTAs of a cluster return the same value.
__device__ __forceinline__ bool CombinesInCluster(const AttentionKernelParams& p) {
  return ClusterSize() > 1 && p.out_block_scales == nullptr && p.work.counts[4] != 0;
}

// The epilogue of a unit, with the interface of GeneralFinish. If CombinesInCluster(), the CTA's
// first unit is combined in its cluster. The splits of all other units may be combined
// cooperatively.
template <typename Traits>
class FewRowsFinish {
 public:
  __device__ __forceinline__ explicit FewRowsFinish(const AttentionKernelParams& p)
      : meets_cluster_(CombinesInCluster(p)) {}

  __device__ __forceinline__ void operator()(const AttentionKernelParams& p, WorkUnit& unit,
                                             const OnlineSoftmax<Traits>& softmax,
                                             AttentionShared<Traits>& shared, bool is_last) {
    if (meets_cluster_) {
      FinishInCluster<Traits>(p, unit, softmax, shared);
      meets_cluster_ = false;
    } else {
      LeaveUnit<Traits>(p, unit, softmax, shared);
      if (unit.item.is_joint != 0 && p.out_block_scales == nullptr) {
        ArriveAndCombineCooperatively<Traits>(p, unit, is_last, shared);
      } else if (unit.item.partial >= 0) {
        ArriveAndCombine<Traits>(p, unit, shared);
      }
    }
  }

  __device__ __forceinline__ void End() {
    if (meets_cluster_) SyncClusterWithoutUnit();
  }

 private:
  bool meets_cluster_;
};

// Maximum shared memory per CTA in bytes: on the smaller cards of compute capability 8.x, and on
// cards that run wide CTAs.
inline constexpr int kMaxSharedBytes = 99 * 1024;
inline constexpr int kMaxWideSharedBytes = 227 * 1024;

// Gets the maximum shared memory per CTA on the current device, in bytes.
inline cudaError_t FindMaxSharedBytes(int& bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// Launches the kernel for the first `queues` CTA queues of the tile schedule.
template <typename Traits>
cudaError_t LaunchQueues(const AttentionKernelParams& params, int queues, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(AttentionShared<Traits>);
  static_assert(kSharedBytes <=
                (Traits::kTile.ctas_per_sm > 1 ? kMaxSharedBytes : kMaxWideSharedBytes));
  const auto kernel = &AttentionKernel<Traits, FewRowsFinish<Traits>>;
  // Applies to the current device. Cheap enough to repeat at each launch.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(params.work.heads_per_queue, queues);
  if (params.cluster == 1) {
    return LaunchDependent(kernel, grid, Traits::kThreads, kSharedBytes, stream, params);
  }
  return LaunchDependentClusters(kernel, grid, dim3(1, params.cluster), Traits::kThreads,
                                 kSharedBytes, stream, params);
}

template <typename Traits>
cudaError_t LaunchFewRows(const AttentionKernelParams& params, cudaStream_t stream) {
  const KernelSchedule& work = params.work;
  if (!params.is_wide) {
    return LaunchQueues<Traits>(params, QueuesInUse(work, params.cluster), stream);
  }
  // If the plan was made without the device's limits, the device may not support wide CTAs.
  int max_shared_bytes = 0;
  const cudaError_t error = FindMaxSharedBytes(max_shared_bytes);
  if (error != cudaSuccess) return error;
  if constexpr (kMayBeWide<Traits>) {
    if (max_shared_bytes >= kMaxWideSharedBytes) {
      return LaunchQueues<WideTraits<Traits>>(params, work.wide_queues, stream);
    }
  }
  return LaunchQueues<Traits>(params, work.wide_queues, stream);
}

template <int kKernel>
cudaError_t LaunchDecodeAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(kAttentionKernels[kKernel].family == KernelFamily::kDecode);
  static_assert(sizeof(AttentionShared<TileTraits<kKernel>>) <=
                kAttentionKernels[kKernel].shared_bytes());
  return LaunchFewRows<TileTraits<kKernel>>(params, stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
