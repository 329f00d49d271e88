// The tiles of the kernels that multiply by whole warpgroups (warpgroup_kernel.cuh): 128 rows of q,
// a warpgroup for each 64, against steps of 128 keys. The mechanisms of the general kernels find
// the same names as in tile_traits.cuh; to them a tile is what is multiplied, of 16 bits, whatever
// type it arrived in.

#ifndef ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_
#define ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_

#include <cstdint>
#include <type_traits>

#include "attention/cuda/general/attention_launchers.h"
#include "attention/cuda/general/device_primitives.cuh"
#include "attention/cuda/general/tile_traits.cuh"
#include "attention/cuda/hopper/warpgroup_rows.cuh"
#include "attention/work_map/attention_tile.h"
#include "base/dtype.h"

namespace reprise {

// kOnlyPlainUnits: for calls none of whose units is special or has results that do not go directly
// to their destination (warpgroup_unit.cuh). The code for such units would take registers from that
// for plain ones.
template <DType kDType, int kHeadDim, KvLoading kLoadingOfTile, bool kOnlyPlainUnits>
struct WarpgroupTraits {
  static constexpr bool kOnlyPlain = kOnlyPlainUnits;
  static constexpr AttentionTile kTile =
      kAttentionTiles[AttentionTileIndex(kDType, kHeadDim, kWarpgroupRows)];
  static constexpr KvLoading kLoading = kLoadingOfTile;
  using Element = typename ElementOf<kDType>::Type;
  static_assert(kLoading != KvLoading::kConverted);
  static_assert(kLoading != KvLoading::kFp8 || std::is_same_v<Element, __half>);

  static constexpr int kHeadDimQk = kHeadDim;
  static constexpr int kHeadDimV = kHeadDim;
  static constexpr bool kValuesInKeys = false;
  static constexpr int kWarpsM = 8;
  static constexpr int kWarpsD = 1;
  static constexpr int kWarpsN = 1;
  static constexpr int kGroupWarps = 8;
  static constexpr int kThreads = 256;
  static constexpr int kGroupThreads = kThreads;
  static constexpr int kRows = kWarpgroupRows;
  static constexpr int kKeys = 128;
  static constexpr int kStages = 2;
  static constexpr int kQueryStages = 2;
  static constexpr bool kConverts = false;
  static constexpr bool kFp8 = false;  // the products are in float16 in any case
  static constexpr bool kArrivesAsFp8 = kLoading == KvLoading::kFp8;
  static constexpr bool kRotates = false;
  static constexpr bool kQueriesAhead = true;
  static constexpr int kOffsetSteps = 3;  // two of keys, and the queries

  static constexpr int kChunk = 8;
  static constexpr int kKeyChunks = kHeadDim / kChunk;
  static constexpr int kValueChunks = kKeyChunks;
  static constexpr int kValuePitch = kKeyChunks;
  static constexpr int kStoredKeyChunks = kKeyChunks;
  static constexpr int kStoredValueChunks = kValueChunks;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kOwnDims = kHeadDim;
  static constexpr int kOutColumns = kHeadDim;
  static constexpr int kOutTiles = kHeadDim / 8;
  static constexpr bool kTensorCores = true;
  static constexpr bool kHoldQ = false;

  // A tile is divided into panels of 64 dims, whose rows have 128 bytes: warpgroup_products.cuh.
  static constexpr int kPanelChunks = 8;
  static constexpr int kPanelBytes = kKeys * kPanelChunks * 16;  // of K, V, and of all rows of Q
  static_assert(kRows == kKeys);

  // How the rows of tiles are copied.
  static constexpr int kArrivingBytes = kArrivesAsFp8 ? 1 : 2;  // of an element of K and V
  using QueryRows = WideRows<kRows, kKeyChunks>;
  using NarrowQueryRows = NarrowRows<kRows, kKeyChunks / 2>;  // of fp8
  using KeyRows = std::conditional_t<kArrivesAsFp8, NarrowRows<kKeys, kKeyChunks / 2>,
                                     WideRows<kKeys, kKeyChunks>>;

  // One more warpgroup copies. It needs few registers, and more if it also converts.
  static constexpr int kLoaderThreads = 128;
  static constexpr int kLoaderRegisters = kArrivesAsFp8 ? 56 : 40;
  static constexpr int kRegisters = kArrivesAsFp8 ? 224 : 232;
  // Registers with which the CTA starts, a multiple of 8 per thread. A request for more never
  // returns.
  static constexpr int kAllThreads = kThreads + kLoaderThreads;
  static constexpr int kCtaRegisters = 65536 / kAllThreads / 8 * 8 * kAllThreads;
  static_assert(kLoaderRegisters * kLoaderThreads + kRegisters * kThreads <= kCtaRegisters);

  // Barriers of the CTA; 0 is that of all threads.
  static constexpr int kComputeBarrier = 1;
  static constexpr int kLoaderBarrier = 2;
  static constexpr int kTurnBarriers = 3;    // one for each warpgroup that computes
  static constexpr int kResultBarriers = 5;  // likewise

  // Synchronises all threads that compute.
  static __device__ __forceinline__ void Meet() { MeetAt(kComputeBarrier, kThreads); }

  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return chunk / kPanelChunks * (kRows * kPanelChunks) + row * kPanelChunks +
           ((chunk ^ row) & (kPanelChunks - 1));
  }
};

}  // namespace reprise

#endif  // ATTENTION_CUDA_HOPPER_WARPGROUP_TRAITS_CUH_
