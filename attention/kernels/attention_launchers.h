// Launches of the attention kernels, one for each of kAttentionTiles and way of loading.
// Torch-free.

#ifndef ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
#define ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include "attention/kernels/attention_kernel_params.h"
#include "base/dtype.h"

namespace reprise {

// How keys and values reach the products.
enum class KvLoading : int8_t {
  // As they are: K, V and q of the products' type, heads in whole chunks of 16 bytes.
  kDirect,
  // Through a conversion: any type that the products' type holds exactly, any strides, rotary
  // embedding, new keys from tensors.
  kConverted,
};

// The kernel of kAttentionTiles[kIndex]. REQUIRES: params.work was planned for its rows.
template <int kIndex, KvLoading kLoading>
cudaError_t LaunchAttention(const AttentionKernelParams& params, cudaStream_t stream);

// Bytes of shared memory that a CTA of it takes.
template <int kIndex, KvLoading kLoading>
int AttentionSharedBytes();

// The kernel that multiplies by whole warpgroups: kDType float16 or bfloat16, kHeadDim 64 or 128,
// KvLoading::kDirect, cards of compute capability 9.0. REQUIRES: params.work was planned for
// kWarpgroupRows.
template <DType kDType, int kHeadDim>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream);

template <DType kDType, int kHeadDim>
int WarpgroupSharedBytes();

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
