#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat16, 256, 16), KvLoading::kFp8>(
    const AttentionKernelParams&, cudaStream_t);
template int AttentionSharedBytes<AttentionTileIndex(DType::kFloat16, 256, 16), KvLoading::kFp8>();
template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat16, 256, 64), KvLoading::kFp8>(
    const AttentionKernelParams&, cudaStream_t);
template int AttentionSharedBytes<AttentionTileIndex(DType::kFloat16, 256, 64), KvLoading::kFp8>();

}  // namespace reprise
