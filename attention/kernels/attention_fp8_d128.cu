#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat16, 128, 16), KvLoading::kFp8>(
    const AttentionKernelParams&, cudaStream_t);
template int AttentionSharedBytes<AttentionTileIndex(DType::kFloat16, 128, 16), KvLoading::kFp8>();
template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat16, 128, 128),
                                     KvLoading::kFp8>(const AttentionKernelParams&, cudaStream_t);
template int AttentionSharedBytes<AttentionTileIndex(DType::kFloat16, 128, 128), KvLoading::kFp8>();

}  // namespace reprise
