// The kernels of KernelFamily::kDecode: decodes, and drafts to verify. They are the general kernel
// (attention/cuda/general/attention_kernel.cuh) with a prologue that begins ahead (first_keys.cuh) and with
// two more ways to merge partials.
//
// Memory bounds these kernels; for few rows of a batch, the merge of partials does as well. For 16
// rows of q, a CTA has four warps, and each warp loads different keys. For 17 to 32 rows, a CTA has
// two groups of two warps. Both warps of a group read the same keys from shared memory: 32 per step,
// or 64 for head_dim 64. The groups synchronise only at the end of a unit.
//
// Launches for few rows are in clusters, whose CTAs merge the pieces of a range among themselves if the
// map says so (cluster_merge.cuh). Other pieces of many rows, or of many keys, are merged by all CTAs
// that have some of them (joint_merge.cuh).

#ifndef REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "reprise/attention/cuda/decode/cluster_merge.cuh"
#include "reprise/attention/cuda/decode/joint_merge.cuh"
#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/general/online_softmax.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/cluster.cuh"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

// A decode tile with twice as many groups of warps, one CTA a multiprocessor and three stages: three
// times as many keys are under way. For rows of few KV heads, whose CTAs do not fill the card (IsWide()
// of attention/work_map/work_map.h).
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

  static_assert(Base::kRows * Base::kKeyChunks % kThreads == 0, "every thread copies as much of q");
};

// Whether a tile has a form with WideTraits.
template <typename Traits>
inline constexpr bool kMayBeWide =
    Traits::kRows == kDecodeRows&& Traits::kHeadDimQk == kHeadDimOfWideTiles;

// Whether the CTA must meet the other CTAs of its cluster. All CTAs of a cluster agree.
__device__ __forceinline__ bool MergesInCluster(const AttentionKernelParams& p) {
  return ClusterSize() > 1 && p.out_block_scales == nullptr && p.work.counts[4] != 0;
}

// What a CTA does with the sums of a unit, as GeneralFinish does. Pieces of the first unit may be merged
// in the CTA's cluster, and those of the others jointly.
template <typename Traits>
class FewRowsFinish {
 public:
  __device__ __forceinline__ explicit FewRowsFinish(const AttentionKernelParams& p)
      : meets_cluster_(MergesInCluster(p)) {}

  __device__ __forceinline__ void operator()(const AttentionKernelParams& p, WorkUnit& unit,
                                             const OnlineSoftmax<Traits>& softmax,
                                             AttentionShared<Traits>& shared, bool is_last) {
    if (meets_cluster_) {
      FinishInCluster<Traits>(p, unit, softmax, shared);
      meets_cluster_ = false;
    } else {
      LeaveUnit<Traits>(p, unit, softmax, shared);
      if (unit.item.is_joint != 0 && p.out_block_scales == nullptr) {
        ArriveAndMergeJointly<Traits>(p, unit, is_last, shared);
      } else if (unit.item.partial >= 0) {
        ArriveAndMerge<Traits>(p, unit, shared);
      }
    }
  }

  __device__ __forceinline__ void End() {
    if (meets_cluster_) MeetClusterWithoutUnit();
  }

 private:
  bool meets_cluster_;
};

// Most bytes of shared memory of a CTA: on the smaller cards of compute capability 8.x, and on the cards
// that run wide CTAs.
inline constexpr int kMostSharedBytes = 99 * 1024;
inline constexpr int kMostWideSharedBytes = 227 * 1024;

// Finds how many bytes of shared memory a CTA may have on the current device.
inline cudaError_t FindMostSharedBytes(int& bytes) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// Launches the kernel for a grid of `columns` columns of the map.
template <typename Traits>
cudaError_t LaunchColumns(const AttentionKernelParams& params, int columns, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(AttentionShared<Traits>);
  static_assert(kSharedBytes <=
                (Traits::kTile.ctas_per_sm > 1 ? kMostSharedBytes : kMostWideSharedBytes));
  const auto kernel = &AttentionKernel<Traits, FewRowsFinish<Traits>>;
  // Cheap, and correct for whichever device is current.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(params.work.heads_per_column, columns);
  if (params.cluster == 1) {
    return LaunchDependent(kernel, grid, Traits::kThreads, kSharedBytes, stream, params);
  }
  return LaunchDependentClusters(kernel, grid, dim3(1, params.cluster), Traits::kThreads,
                                 kSharedBytes, stream, params);
}

template <typename Traits>
cudaError_t LaunchFewRows(const AttentionKernelParams& params, cudaStream_t stream) {
  const TileMap& work = params.work;
  if (!params.is_wide) {
    return LaunchColumns<Traits>(params, ColumnsInUse(work, params.cluster), stream);
  }
  // A plan that was not told of the device may be wrong about it.
  int most_shared_bytes = 0;
  const cudaError_t error = FindMostSharedBytes(most_shared_bytes);
  if (error != cudaSuccess) return error;
  if constexpr (kMayBeWide<Traits>) {
    if (most_shared_bytes >= kMostWideSharedBytes) {
      return LaunchColumns<WideTraits<Traits>>(params, work.wide_columns, stream);
    }
  }
  return LaunchColumns<Traits>(params, work.wide_columns, stream);
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
