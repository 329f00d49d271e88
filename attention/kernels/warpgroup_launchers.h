// Launches of the attention kernels that multiply by whole warpgroups (tier 2).
// Torch-free.

#ifndef ATTENTION_KERNELS_WARPGROUP_LAUNCHERS_H_
#define ATTENTION_KERNELS_WARPGROUP_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/attention_launchers.h"
#include "base/dtype.h"

namespace reprise {

// For cards of compute capability 9.0: kHeadDim 64 or 128; KvLoading::kDirect with kDType float16
// or bfloat16, and KvLoading::kFp8 with kDType float16. REQUIRES: params.work was planned for
// kWarpgroupRows.
template <DType kDType, int kHeadDim, KvLoading kLoading>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream);

// Bytes of shared memory that a CTA of it takes.
template <DType kDType, int kHeadDim, KvLoading kLoading>
int WarpgroupSharedBytes();

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WARPGROUP_LAUNCHERS_H_
