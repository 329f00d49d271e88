// The kernels of KernelFamily::kDecode: decodes, and drafts to verify.
//
// Memory bounds these kernels; for few rows of a batch, the merge of partials does as well. For 16
// rows of q, a CTA has four warps, and each warp loads different keys. For 17 to 32 rows, a CTA has
// two groups of two warps. Both warps of a group read the same keys from shared memory: 32 per step,
// or 64 for head_dim 64. The groups synchronise only at the end of a unit.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "reprise/attention/cuda/decode/ahead_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/tiles.h"

namespace reprise {

template <int kKernel>
cudaError_t LaunchDecodeAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(kAttentionKernels[kKernel].family == KernelFamily::kDecode);
  static_assert(sizeof(AttentionShared<TileTraits<kKernel>>) <=
                kAttentionKernels[kKernel].shared_bytes());
  return LaunchAhead<TileTraits<kKernel>>(params, stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
