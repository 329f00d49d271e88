// Launches of the attention kernels, one for each of kAttentionTiles. Torch-free.

#ifndef ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
#define ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "attention/kernels/attention_kernel_params.h"

namespace reprise {

// The kernel of kAttentionTiles[kIndex]. REQUIRES: params.work was planned for its rows.
template <int kIndex>
cudaError_t LaunchAttention(const AttentionKernelParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
