// The kernels of decode_launchers.h.

#ifndef REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "reprise/attention/cuda/decode/ahead_kernel.cuh"
#include "reprise/attention/cuda/decode/decode_launchers.h"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/tile_traits.cuh"

namespace reprise {

template <int kIndex, KvLoading kLoading>
int DecodeSharedBytes() {
  return sizeof(AttentionShared<TileTraits<kIndex, kLoading>>);
}

template <int kIndex, KvLoading kLoading>
cudaError_t LaunchDecodeAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  static_assert(StartsAhead(kAttentionTiles[kIndex], kLoading));
  return LaunchAhead<TileTraits<kIndex, kLoading>>(params, stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
