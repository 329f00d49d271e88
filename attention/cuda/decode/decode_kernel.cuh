// The kernels of decode_launchers.h.

#ifndef ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
#define ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "attention/cuda/decode/ahead_kernel.cuh"
#include "attention/cuda/decode/decode_launchers.h"
#include "attention/cuda/general/attention_kernel_params.h"
#include "attention/cuda/general/tile_traits.cuh"

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

#endif  // ATTENTION_CUDA_DECODE_DECODE_KERNEL_CUH_
