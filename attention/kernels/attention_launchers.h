// Launches of the attention kernels, one for each of kAttentionTiles and way of loading.
// Torch-free.

#ifndef ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
#define ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/attention_tile.h"
#include "base/dtype.h"

namespace reprise {

// How keys and values reach the products.
enum class KvLoading : int8_t {
  // As they are: K, V and q of the products' type, heads in whole chunks of 16 bytes.
  kDirect,
  // Through a conversion: any type that the products' type holds exactly, any strides, rotary
  // embedding, new keys from tensors.
  kConverted,
  // As they are: K and V of fp8, heads in whole chunks of 16 bytes. Products are in float16, which
  // holds every value of fp8, and q of 16 bits or fp8 comes to it by a power of two a row.
  kFp8,
};

// Keys of a step of a group of warps: those of the tile, or, where they have half the bytes, twice
// as many, but no more than threads.
constexpr int KeysOfStep(const AttentionTile& tile, KvLoading loading) {
  if (loading != KvLoading::kFp8) return tile.keys;
  return std::min(2 * tile.keys, tile.warps_m * tile.warps_d * 32);
}

// The kernel of kAttentionTiles[kIndex]. REQUIRES: params.work was planned for its rows.
template <int kIndex, KvLoading kLoading>
cudaError_t LaunchAttention(const AttentionKernelParams& params, cudaStream_t stream);

// Bytes of shared memory that a CTA of it takes.
template <int kIndex, KvLoading kLoading>
int AttentionSharedBytes();

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_LAUNCHERS_H_
