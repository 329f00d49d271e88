#include "attention/kernels/latent_kernel.cuh"

namespace reprise {

template cudaError_t LaunchLatentAttention<DType::kFloat16>(const AttentionKernelParams&,
                                                            cudaStream_t);
template int LatentSharedBytes<DType::kFloat16>();

}  // namespace reprise
