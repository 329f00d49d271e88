#include "attention/kernels/attention_kernel.cuh"

namespace reprise {

template cudaError_t LaunchAttention<AttentionTileIndex(DType::kFloat32, 64, 16),
                                     KvLoading::kConverted>(const AttentionKernelParams&,
                                                            cudaStream_t);
template int
AttentionSharedBytes<AttentionTileIndex(DType::kFloat32, 64, 16), KvLoading::kConverted>();

}  // namespace reprise
