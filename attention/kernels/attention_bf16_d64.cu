#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kBFloat16, 64, 16)>(
    const AttentionKernelParams&, cudaStream_t);
template cudaError_t LaunchAttention<AttentionTileIndex(DType::kBFloat16, 64, 64)>(
    const AttentionKernelParams&, cudaStream_t);

}  // namespace reprise
