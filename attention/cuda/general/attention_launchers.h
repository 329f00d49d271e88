// Launch functions of the attention kernels. Each function enqueues the kernel
// kAttentionKernels[kKernel] (attention/cuda/tiles.h) on `stream`. Each kernel family has a
// separate function, so that each folder instantiates its own kernels
// (attention/cuda/instances.bzl). attention/cuda/kernel_launch.h selects the function.
//
// REQUIRES: the kernel belongs to the family and serves the call; its tile has at least
// params.work.tile_rows rows.
// Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_
#define REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "reprise/attention/cuda/general/attention_kernel_params.h"

namespace reprise {

template <int kKernel>
cudaError_t LaunchGeneralAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kKernel>
cudaError_t LaunchDecodeAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kKernel>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kKernel>
cudaError_t LaunchMlaAttention(const AttentionKernelParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_
