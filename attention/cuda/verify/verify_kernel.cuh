// The general kernel (attention/cuda/general/attention_kernel.cuh) with the tiles of
// attention/work_map/verify_tile.h: for drafts to verify, and whatever else has 17 to 32 rows of q.
//
// Bound: memory, as for a decode, at few rows of a batch also the merge of partials. A CTA has two groups
// of two warps. A group has 32 keys a step (64 for head_dim 64), which both of its warps read from shared
// memory; the groups wait for each other only at a unit's end.

#ifndef REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_KERNEL_CUH_

#include <cuda_runtime.h>

#include "reprise/attention/cuda/verify/group_barrier.cuh"

// After the barrier, which it uses.
#include "reprise/attention/cuda/decode/ahead_kernel.cuh"
#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/verify/verify_launchers.h"
#include "reprise/attention/cuda/verify/verify_traits.cuh"

namespace reprise {

template <int kIndex, KvLoading kLoading>
int VerifySharedBytes() {
  return sizeof(AttentionShared<VerifyTraits<kIndex, kLoading>>);
}

template <int kIndex, KvLoading kLoading>
cudaError_t LaunchVerifyAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  return LaunchAhead<VerifyTraits<kIndex, kLoading>>(params, stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_KERNEL_CUH_
