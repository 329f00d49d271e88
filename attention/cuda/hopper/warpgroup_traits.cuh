// Traits of the warpgroup kernels (warpgroup_kernel.cuh): 128 query rows, 64 per consumer
// warpgroup, and KV tiles of 128 keys, or 64 keys if head_dim_v > 128. Members have the same names
// as in tile_traits.cuh, because the general mechanisms use them. They describe the operands of the
// MMA: 16-bit elements, even if K and V arrive as fp8, and head dims padded to whole panels.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_

#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_rows.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/dtype.h"

namespace reprise {

// kOnlyPlainUnits: for calls whose units are all plain and use the register epilogue
// (warpgroup_unit.cuh). The code for other units would take registers from plain units.
template <DType kDType, int kDimsOfK, int kDimsOfV, KvLoading kLoadingOfTile, bool kOnlyPlainUnits>
struct WarpgroupTraits {
  static constexpr bool kOnlyPlain = kOnlyPlainUnits;
  static constexpr AttentionKernelEntry kKernel = kAttentionKernels[KernelIndex(
      kDType, kDimsOfK, kWarpgroupRows, kLoadingOfTile, KernelFamily::kWarpgroup)];
  static constexpr AttentionTile kTile = kKernel.tile;
  static_assert(kTile.head_dim_v == kDimsOfV);
  static constexpr KvLoading kLoading = kLoadingOfTile;
  using Element = typename ElementOf<kDType>::Type;
  static_assert(kLoading != KvLoading::kConverted);
  static_assert(kLoading != KvLoading::kFp8 || std::is_same_v<Element, __half>);

  // kProductDims: dims of the MMA. kHeadDimQk and kHeadDimV: dims of the tiles, in panels of 64
  // dims with rows of 128 bytes (warpgroup_products.cuh).
  static constexpr int kProductDims = kDimsOfK;
  static constexpr int kPanelDims = 64;
  static constexpr int kHeadDimQk = (kDimsOfK + kPanelDims - 1) / kPanelDims * kPanelDims;
  static constexpr int kHeadDimV = (kDimsOfV + kPanelDims - 1) / kPanelDims * kPanelDims;
  static constexpr bool kValuesInKeys = false;
  static constexpr int kWarpsM = 8;
  static constexpr int kWarpsD = 1;
  static constexpr int kWarpsN = 1;
  static constexpr int kGroupWarps = 8;
  static constexpr int kThreads = 256;
  static constexpr int kGroupThreads = kThreads;
  static constexpr int kRows = kWarpgroupRows;
  static constexpr int kKeys = kTile.keys;
  static constexpr int kStages = 2;
  // Two query stages if shared memory also has room for two stages of keys and values.
  static constexpr int kQueryStages = kHeadDimQk > 128 ? 1 : 2;
  static constexpr bool kConverts = false;
  static constexpr bool kFp8 = false;  // the MMA type is float16 even with fp8 K and V
  static constexpr bool kArrivesAsFp8 = kLoading == KvLoading::kFp8;
  static constexpr bool kRotates = false;
  static constexpr bool kQueriesAhead = kQueryStages > 1;
  // Row offsets of two KV tiles and of the queries, one row per thread each.
  static constexpr int kOffsetSteps = 3 * (kRows / kKeys);

  static constexpr int kChunk = 8;
  static constexpr int kKeyChunks = kHeadDimQk / kChunk;
  static constexpr int kValueChunks = kHeadDimV / kChunk;
  static constexpr int kValuePitch = kValueChunks;
  static constexpr int kStoredKeyChunks = kKeyChunks;
  static constexpr int kStoredValueChunks = kValueChunks;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kOwnDims = kProductDims;
  static constexpr int kOutColumns = kDimsOfV;
  static constexpr int kOutTiles = kOutColumns / 8;
  static constexpr bool kTensorCores = true;
  static constexpr bool kHoldQ = false;

  static constexpr int kPanelChunks = kPanelDims / kChunk;
  static constexpr int kQueryPanelBytes = kRows * kPanelChunks * 16;
  static constexpr int kPanelBytes = kKeys * kPanelChunks * 16;  // per panel of K and V
  static_assert(kRows % kKeys == 0);

  // Assignment of rows to threads (warpgroup_rows.cuh). Keys and values have the same assignment,
  // because one thread records both addresses of a row.
  static constexpr int kArrivingBytes = kArrivesAsFp8 ? 1 : 2;  // per element of K and V
  static constexpr int kRowLanes = kKeyChunks % 16 == 0 ? 16 : 8;
  static_assert(!kArrivesAsFp8 || kHeadDimQk == kHeadDimV,
                "K and V in fp8 have the same row assignment");
  using QueryRows = WideRows<kRows, kKeyChunks, kRowLanes>;
  using NarrowQueryRows = NarrowRows<kRows, kArrivesAsFp8 ? kKeyChunks / 2 : 8>;  // fp8 queries
  using KeyRows = std::conditional_t<kArrivesAsFp8, NarrowRows<kKeys, kKeyChunks / 2>,
                                     WideRows<kKeys, kKeyChunks, kRowLanes>>;
  using ValueRows = std::conditional_t<kArrivesAsFp8, NarrowRows<kKeys, kValueChunks / 2>,
                                       WideRows<kKeys, kValueChunks, kRowLanes>>;

  // The producer warpgroup. It needs few registers, and more if it converts, if a thread copies
  // several chunks of a row, or for head_dim_v 96.
  static constexpr int kLoaderThreads = 128;
  static constexpr bool kLoadsMore = kArrivesAsFp8 || KeyRows::kChunkPasses > 1;
  static constexpr bool kLoadsMost =
      (kArrivesAsFp8 && kHeadDimQk > 128) || KeyRows::kChunkPasses > 2;
  static constexpr int kLoaderRegisters = kLoadsMost                        ? 72
                                          : kLoadsMore || kOutColumns == 96 ? 56
                                                                            : 40;
  static constexpr int kRegisters = 232 - (kLoaderRegisters - 40) / 2;
  // Number of registers of the CTA at launch; a multiple of 8 per thread. RegAlloc() to a
  // larger total never returns.
  static constexpr int kAllThreads = kThreads + kLoaderThreads;
  static constexpr int kCtaRegisters = 65536 / kAllThreads / 8 * 8 * kAllThreads;
  static_assert(kLoaderRegisters * kLoaderThreads + kRegisters * kThreads <= kCtaRegisters);

  // Named barriers of the CTA; __syncthreads() uses barrier 0.
  static constexpr int kComputeBarrier = 1;
  static constexpr int kLoaderBarrier = 2;
  static constexpr int kTurnBarriers = 3;    // one per consumer warpgroup
  static constexpr int kResultBarriers = 5;  // one per consumer warpgroup

  // Synchronises all consumer threads.
  static __device__ __forceinline__ void Sync() { NamedBarrierSync(kComputeBarrier, kThreads); }

  // Index of a chunk of a query row.
  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return PlaceAt(kRows, row, chunk);
  }
  static __device__ __forceinline__ int ValueChunkAt(int key, int chunk) {
    return PlaceAt(kKeys, key, chunk);
  }

 private:
  static __device__ __forceinline__ int PlaceAt(int panel_rows, int row, int chunk) {
    return chunk / kPanelChunks * (panel_rows * kPanelChunks) + row * kPanelChunks +
           ((chunk ^ row) & (kPanelChunks - 1));
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_
