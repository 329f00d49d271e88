// Launches a kernel of kAttentionKernels (attention/cuda/tiles.h). Only in builds with CUDA.
// Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_KERNEL_LAUNCH_H_
#define REPRISE_ATTENTION_CUDA_KERNEL_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/tiles.h"

namespace reprise {

// Enqueues the kernel on `stream`; may be captured. REQUIRES: `kernel` is an element of
// kAttentionKernels and serves the call; its tile has at least params.work.tile_rows rows.
cudaError_t LaunchAttentionKernel(const AttentionKernelEntry& kernel,
                                  const AttentionKernelParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_KERNEL_LAUNCH_H_
