#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kBFloat16, 64, 16),
                                     KvLoading::kConverted>(const AttentionKernelParams&,
                                                            cudaStream_t);
template int
AttentionSharedBytes<AttentionTileIndex(DType::kBFloat16, 64, 16), KvLoading::kConverted>();
template cudaError_t LaunchAttention<AttentionTileIndex(DType::kBFloat16, 64, 128),
                                     KvLoading::kConverted>(const AttentionKernelParams&,
                                                            cudaStream_t);
template int
AttentionSharedBytes<AttentionTileIndex(DType::kBFloat16, 64, 128), KvLoading::kConverted>();

}  // namespace reprise
