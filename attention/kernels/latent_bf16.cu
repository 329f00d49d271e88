#include "attention/kernels/latent_kernel.cuh"

namespace reprise {

template cudaError_t LaunchLatentAttention<DType::kBFloat16>(const AttentionKernelParams&,
                                                             cudaStream_t);
template int LatentSharedBytes<DType::kBFloat16>();

}  // namespace reprise
