// The launches of the attention kernels: the general ones (attention_kernel.cuh), those by whole
// warpgroups (hopper/warpgroup_kernel.cuh) and those for latent heads (latent/latent_kernel.cuh).
// attention/cuda/instances.bzl lists the instances; attention/cuda/attention_dispatch.h chooses.
//
// Each kernel has two functions: Launch...() enqueues it on `stream`, and ...SharedBytes() returns
// the bytes of shared memory of one of its CTAs. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_
#define REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// How keys and values reach the products.
enum class KvLoading : int8_t {
  // Unconverted: K, V and q have the products' type, and heads are whole chunks of 16 bytes.
  kDirect,
  // Through a conversion: any type whose values the products' type holds exactly, any strides,
  // rotary embedding, new keys from tensors.
  kConverted,
  // Unconverted: K and V are fp8, and heads are whole chunks of 16 bytes. Products are in float16,
  // which holds every value of fp8; q of 16 bits or fp8 is scaled by a power of two per row to fit.
  kFp8,
};

// Keys of a step of a group of warps: those of the tile, or, where keys have half the bytes, up to
// twice as many, but no more than the group has threads.
constexpr int KeysOfStep(const AttentionTile& tile, KvLoading loading) {
  if (loading != KvLoading::kFp8) return tile.keys;
  return std::min(2 * tile.keys, tile.warps_m * tile.warps_d * 32);
}

// The general kernel of kAttentionTiles[kIndex]. REQUIRES: params.work was planned for the tile's
// rows.
template <int kIndex, KvLoading kLoading>
cudaError_t LaunchAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <int kIndex, KvLoading kLoading>
int AttentionSharedBytes();

// The kernel by whole warpgroups, for compute capability 9.0: kHeadDim 64 or 128;
// KvLoading::kDirect with kDType float16 or bfloat16, KvLoading::kFp8 with kDType float16.
// REQUIRES: params.work was planned for kWarpgroupRows.
template <DType kDType, int kHeadDim, KvLoading kLoading>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <DType kDType, int kHeadDim, KvLoading kLoading>
int WarpgroupSharedBytes();

// Rows of q of a tile of the kernel for latent heads.
inline constexpr int kLatentRows = 64;

// The kernel for latent heads, for compute capability 9.0: V is the first columns of K,
// KvLoading::kDirect, kDType float16 or bfloat16. REQUIRES: params.work was planned for
// kLatentRows.
template <DType kDType>
cudaError_t LaunchLatentAttention(const AttentionKernelParams& params, cudaStream_t stream);
template <DType kDType>
int LatentSharedBytes();

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_LAUNCHERS_H_
