#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat32, 128, 16)>(
    const AttentionKernelParams&, cudaStream_t);

}  // namespace reprise
