// The launches of the kernels by whole warpgroups (warpgroup_kernel.cuh) for head dims other than
// 64 and 128, which attention/cuda/general/attention_launchers.h declares, and the tiles of all of
// them. As there, each kernel has two functions: one enqueues it on `stream`, the other returns the
// bytes of shared memory of one of its CTAs. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LAUNCHERS_H_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The tile of the kernel for these head dims. A step is 64 keys where the sums of 128 columns and
// more leave no registers for the logits of 128.
constexpr AttentionTile WarpgroupTile(DType dtype, int head_dim_qk, int head_dim_v) {
  return {dtype, head_dim_qk, head_dim_v, kWarpgroupRows / 16, 1, 1, head_dim_v > 128 ? 64 : 128,
          1};
}

// Tiles of a plan that the kernel takes at once, along their rows: 1, or 2 where plans for its head
// dims have pairs of tiles (attention/work_map/tile_pair.h).
constexpr int WarpgroupTilesOfMap(const AttentionTile& tile) {
  return kWarpgroupRows /
         FindAttentionTile(tile.dtype, tile.head_dim_qk, tile.head_dim_v, kWarpgroupRows)->rows();
}

// Compute capability 9.0: KvLoading::kDirect with kDType float16 or bfloat16, head dims 96 and 96,
// 192 and 128, 256 and 256; KvLoading::kFp8 with kDType float16, of these the first and last.
// REQUIRES: params.work was planned for these head dims, and its tile_rows are kWarpgroupRows.
template <DType kDType, int kHeadDimQk, int kHeadDimV, KvLoading kLoading>
cudaError_t LaunchWarpgroupHeads(const AttentionKernelParams& params, cudaStream_t stream);
template <DType kDType, int kHeadDimQk, int kHeadDimV, KvLoading kLoading>
int WarpgroupHeadsSharedBytes();

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_LAUNCHERS_H_
