// The tile of the kernel for latent heads (latent_kernel.cuh): 64 rows of q against steps of 64
// keys. The mechanisms of the general kernels find the same names as in tile_traits.cuh.

#ifndef REPRISE_ATTENTION_CUDA_LATENT_LATENT_TRAITS_CUH_
#define REPRISE_ATTENTION_CUDA_LATENT_LATENT_TRAITS_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/dtype.h"

namespace reprise {

template <DType kDType>
struct LatentTraits {
  static constexpr AttentionTile kTile =
      kAttentionKernels[KernelIndex(kDType, kMaxLatentHeadDimQk, kLatentRows, KvLoading::kDirect,
                                    KernelFamily::kLatent)]
          .tile;
  static constexpr KvLoading kLoading = KvLoading::kDirect;
  using Element = typename ElementOf<kDType>::Type;

  static constexpr int kHeadDimQk = kMaxLatentHeadDimQk;
  static constexpr int kHeadDimV = kMaxLatentHeadDimV;
  static constexpr bool kValuesInKeys = true;
  static constexpr int kRows = kLatentRows;
  static constexpr int kKeys = 64;
  static constexpr int kStages = 2;
  static constexpr bool kConverts = false;
  static constexpr bool kFp8 = false;
  static constexpr bool kArrivesAsFp8 = false;
  static constexpr bool kRotates = false;
  static constexpr bool kTensorCores = true;
  static constexpr bool kOnlyPlain = false;  // warpgroup_traits.cuh
  static constexpr bool kHoldQ = false;
  static constexpr bool kQueriesAhead = true;
  static constexpr int kOffsetSteps = 1;  // not used: lanes exchange places

  // Warpgroups, each warp of which has 16 rows of the tile: two that add up, each half of the
  // columns of out, one that computes weights, one that copies. "Threads" are those that add up,
  // because they write results.
  static constexpr int kWarpsM = 4;
  static constexpr int kWarpsD = 1;
  static constexpr int kWarpsN = 1;
  static constexpr int kGroupWarps = kWarpsM;
  static constexpr int kGroupThreads = 128;
  static constexpr int kThreads = 256;
  static constexpr int kWeigherThreads = 128;
  static constexpr int kLoaderThreads = 128;
  static constexpr int kCtaThreads = kThreads + kWeigherThreads + kLoaderThreads;

  static constexpr int kChunk = 8;
  static constexpr int kKeyChunks = kHeadDimQk / kChunk;
  static constexpr int kValueChunks = kHeadDimV / kChunk;
  static constexpr int kValuePitch = kKeyChunks;
  static constexpr int kStoredKeyChunks = kKeyChunks;
  static constexpr int kStoredValueChunks = kValueChunks;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kOwnDims = kHeadDimQk;
  static constexpr int kOutColumns = kHeadDimV / 2;  // columns that a warpgroup holds
  static constexpr int kOutTiles = kOutColumns / 8;

  // A tile is divided into panels of 64 dims, whose rows have 128 bytes: warpgroup_products.cuh.
  static constexpr int kPanelChunks = 8;
  static constexpr int kPanelBytes = kKeys * kPanelChunks * 16;  // of K and Q
  static constexpr int kPanels = kKeyChunks / kPanelChunks;
  static constexpr int kValuePanels = kValueChunks / kPanelChunks;
  static_assert(kRows == kKeys);
  // The part of K that is not V has the size of the weights, which replace it.
  static_assert(kPanels == kValuePanels + 1);

  // A step arrives in two parts, the panels of one warpgroup each, which are announced and freed
  // separately: products begin before the whole step has arrived. What is not V comes with the
  // second.
  static constexpr int kParts = 2;
  static constexpr int kPartPanels = kValuePanels / kParts;

  // Steps of 16 dims of Q, from the first on, that the weighing warpgroup keeps in registers:
  // products are bounded by what they read of shared memory as much as by what they multiply.
  static constexpr int kHeldSteps = 8;

  static constexpr int kLoaderRegisters = 64;
  static constexpr int kWeigherRegisters = 128;
  static constexpr int kRegisters = 160;
  static_assert(kLoaderRegisters * kLoaderThreads + kWeigherRegisters * kWeigherThreads +
                    kRegisters * kThreads <=
                65536);

  // Barriers of the CTA; 0 is that of all threads.
  static constexpr int kSumBarrier = 1;
  static constexpr int kWeigherBarrier = 2;
  static constexpr int kLoaderBarrier = 3;

  // Synchronises all threads that add up.
  static __device__ __forceinline__ void Meet() { MeetAt(kSumBarrier, kThreads); }

  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return chunk / kPanelChunks * (kRows * kPanelChunks) + row * kPanelChunks +
           ((chunk ^ row) & (kPanelChunks - 1));
  }
  // Values are the first columns of keys.
  static __device__ __forceinline__ int ValueChunkAt(int key, int chunk) {
    return ChunkAt(key, chunk);
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_LATENT_LATENT_TRAITS_CUH_
