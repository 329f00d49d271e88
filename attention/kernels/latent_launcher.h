// Launches of the kernel for latent heads by whole warpgroups: latent_kernel.cuh. Torch-free.

#ifndef ATTENTION_KERNELS_LATENT_LAUNCHER_H_
#define ATTENTION_KERNELS_LATENT_LAUNCHER_H_

#include <cuda_runtime_api.h>

#include "attention/kernels/attention_kernel_params.h"
#include "base/dtype.h"

namespace reprise {

// Rows of q of its tiles.
inline constexpr int kLatentRows = 64;

// kDType float16 or bfloat16, V the first columns of K, KvLoading::kDirect, cards of compute
// capability 9.0. REQUIRES: params.work was planned for kLatentRows.
template <DType kDType>
cudaError_t LaunchLatentAttention(const AttentionKernelParams& params, cudaStream_t stream);

// Bytes of shared memory that a CTA of it takes.
template <DType kDType>
int LatentSharedBytes();

}  // namespace reprise

#endif  // ATTENTION_KERNELS_LATENT_LAUNCHER_H_
