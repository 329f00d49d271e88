// Traits of the absorbed MLA kernel (mla_kernel.cuh): 64 query rows against KV tiles of 64 keys.
// Members have the same names as in tile_traits.cuh, because the general mechanisms use them.

#ifndef REPRISE_ATTENTION_CUDA_MLA_MLA_TRAITS_CUH_
#define REPRISE_ATTENTION_CUDA_MLA_MLA_TRAITS_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/dtype.h"

namespace reprise {

template <DType kDType>
struct MlaTraits {
  static constexpr AttentionTile kTile =
      kAttentionKernels[KernelIndex(kDType, kMaxLatentHeadDimQk, kLatentRows, KvLoading::kDirect,
                                    KernelFamily::kMla)]
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
  static constexpr int kOffsetSteps = 1;  // not used: lanes exchange addresses

  // The four warpgroups: two for accumulation, with half of the columns of out each, one for the
  // softmax, and the producer. Each warp of the first three has 16 rows of the tile. kThreads and
  // other names without a prefix are for the accumulation warpgroups, because these write results.
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
  static constexpr int kOutColumns = kHeadDimV / 2;  // columns of out per warpgroup
  static constexpr int kOutTiles = kOutColumns / 8;

  // A tile is divided into panels of 64 dims with rows of 128 bytes (warpgroup_products.cuh).
  static constexpr int kPanelChunks = 8;
  static constexpr int kPanelBytes = kKeys * kPanelChunks * 16;  // per panel of K and Q
  static constexpr int kPanels = kKeyChunks / kPanelChunks;
  static constexpr int kValuePanels = kValueChunks / kPanelChunks;
  static_assert(kRows == kKeys);
  // The dims of K that are not V have the size of the weights, which overwrite them.
  static_assert(kPanels == kValuePanels + 1);

  // A KV tile arrives in two parts, one per accumulation warpgroup, with separate full and empty
  // barriers. MMAs can therefore begin before the whole KV tile has arrived. The dims that are not
  // V belong to the second part.
  static constexpr int kParts = 2;
  static constexpr int kPartPanels = kValuePanels / kParts;

  // Number of 16-dim slices of Q, from dim 0, that the softmax warpgroup keeps in registers. MMAs
  // are limited by shared memory reads as much as by tensor cores, and held slices are not read
  // again.
  static constexpr int kHeldSteps = 8;

  static constexpr int kLoaderRegisters = 64;
  static constexpr int kWeigherRegisters = 128;
  static constexpr int kRegisters = 160;
  static_assert(kLoaderRegisters * kLoaderThreads + kWeigherRegisters * kWeigherThreads +
                    kRegisters * kThreads <=
                65536);

  // Named barriers of the CTA; __syncthreads() uses barrier 0.
  static constexpr int kSumBarrier = 1;
  static constexpr int kWeigherBarrier = 2;
  static constexpr int kLoaderBarrier = 3;

  // Synchronises the accumulation warpgroups.
  static __device__ __forceinline__ void Sync() { NamedBarrierSync(kSumBarrier, kThreads); }

  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return chunk / kPanelChunks * (kRows * kPanelChunks) + row * kPanelChunks +
           ((chunk ^ row) & (kPanelChunks - 1));
  }
  // The values are the first columns of the keys.
  static __device__ __forceinline__ int ValueChunkAt(int key, int chunk) {
    return ChunkAt(key, chunk);
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_MLA_MLA_TRAITS_CUH_
