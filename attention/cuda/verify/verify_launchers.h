// The launches of the kernels for a few queries a row (verify_kernel.cuh). As in
// attention/cuda/general/attention_launchers.h, each kernel has two functions: one enqueues it on
// `stream`, the other returns the bytes of shared memory of one of its CTAs. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_LAUNCHERS_H_
#define REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/work_map/verify_tile.h"

namespace reprise {

// The kernel of kVerifyTiles[kIndex]: KvLoading::kDirect, or KvLoading::kFp8 for tiles of float16.
// REQUIRES: params.work was planned for the tile's rows.
template <int kIndex, KvLoading kLoading>
cudaError_t LaunchVerifyAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kIndex, KvLoading kLoading>
int VerifySharedBytes();

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_LAUNCHERS_H_
