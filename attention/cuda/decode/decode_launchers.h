// The launches of the decode kernels that prepare their first unit ahead (ahead_kernel.cuh). As in
// attention/cuda/general/attention_launchers.h, each kernel has two functions: one enqueues it on
// `stream`, the other returns the bytes of shared memory of one of its CTAs. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_DECODE_LAUNCHERS_H_
#define REPRISE_ATTENTION_CUDA_DECODE_DECODE_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Which kernels of a tile these are, in place of the general ones.
constexpr bool StartsAhead(const AttentionTile& tile, KvLoading loading) {
  return tile.rows() == kDecodeRows && tile.head_dim_qk <= 128 && tile.dtype != DType::kFloat32 &&
         loading != KvLoading::kConverted;
}

// The kernel of kAttentionTiles[kIndex]. REQUIRES: StartsAhead(); params.work was planned for the
// tile's rows.
template <int kIndex, KvLoading kLoading>
cudaError_t LaunchDecodeAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kIndex, KvLoading kLoading>
int DecodeSharedBytes();

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_DECODE_LAUNCHERS_H_
