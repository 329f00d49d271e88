// An AttentionKernelEntry as types and constants, and the layout of its shared memory.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_TILE_TRAITS_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_TILE_TRAITS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/general/work_unit.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/dtype.h"

namespace reprise {

template <DType kDType>
struct ElementOf;
template <>
struct ElementOf<DType::kFloat32> {
  using Type = float;
};
template <>
struct ElementOf<DType::kFloat16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using Type = __nv_bfloat16;
};

constexpr int LargestPowerOfTwoIn(int n) { return n & -n; }

// Traits of kAttentionKernels[kKernel].
template <int kKernel>
struct TileTraits {
  static_assert(kKernel >= 0, "not in kAttentionKernels");
  static constexpr AttentionTile kTile = kAttentionKernels[kKernel].tile;
  static constexpr KvLoading kLoading = kAttentionKernels[kKernel].loading;
  using Element = typename ElementOf<kTile.dtype>::Type;

  static constexpr int kHeadDimQk = kTile.head_dim_qk;
  static constexpr int kHeadDimV = kTile.head_dim_v;
  static constexpr bool kValuesInKeys = kTile.values == ValueSource::kKeyTile;
  static constexpr int kWarpsM = kTile.warps_m;
  static constexpr int kWarpsD = kTile.warps_d;
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kGroupWarps = kWarpsM * kWarpsD;  // warps that share a KV tile
  static constexpr int kGroupThreads = kGroupWarps * 32;
  static constexpr int kThreads = kGroupThreads * kWarpsN;
  static constexpr int kRows = kTile.rows();
  static constexpr int kKeys = kTile.keys;
  static constexpr int kStages = 2;
  // Custom masks and per-sequence ALiBi slopes, which tuned kernels do not serve (logits.cuh).
  static constexpr bool kServesRareTerms = true;
  static constexpr bool kConverts = kLoading == KvLoading::kConverted;
  static constexpr bool kFp8 = kLoading == KvLoading::kFp8;
  static constexpr bool kPrefetchesInPrologue = kAttentionKernels[kKernel].prefetches_in_prologue();
  static constexpr bool kRotates = kConverts && !kValuesInKeys;  // V is not rotated
  static constexpr bool kQueriesAhead =
      false;  // whether the next unit's q is loaded while results are written
  static constexpr int kOffsetSteps = kConverts ? 3 : kStages;  // KV tiles with recorded addresses

  // Shared memory is addressed in 16-byte chunks. The chunks of a row are swizzled by the row
  // index, so that eight consecutive rows have chunk c in different banks.
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(Element));  // elements
  static constexpr int kKeyChunks = kHeadDimQk / kChunk;                 // per row of Q and K
  static constexpr int kValueChunks = kHeadDimV / kChunk;                // per row of V
  static constexpr int kValuePitch = kValuesInKeys ? kKeyChunks : kValueChunks;
  // The layout of K and V as stored in the cache. Differs from the MMA layout if K and V are
  // converted in registers (kFp8).
  static constexpr int kStoredBytes = kFp8 ? 1 : static_cast<int>(sizeof(Element));
  static constexpr int kStoredChunk = 16 / kStoredBytes;
  static constexpr int kStoredKeyChunks = kHeadDimQk / kStoredChunk;
  static constexpr int kStoredValueChunks = kHeadDimV / kStoredChunk;
  static constexpr int kStoredValuePitch = kValuesInKeys ? kStoredKeyChunks : kStoredValueChunks;

  static constexpr int kKeyTiles = kKeys / 8;              // 8-column tiles of the logits
  static constexpr int kOwnDims = kHeadDimQk / kWarpsD;    // dims of Q and K per warp
  static constexpr int kOutColumns = kHeadDimV / kWarpsD;  // columns of out per warp
  static constexpr int kOutTiles = kOutColumns / 8;

  static constexpr bool kTensorCores = sizeof(Element) == 2;
  // Q stays in registers if there are enough registers. If several warps have the same rows, each
  // warp holds only its dims.
  static constexpr int kHeldDims = kWarpsD > 1 ? 144 : kLoading == KvLoading::kDirect ? 128 : 64;
  static constexpr bool kHoldQ = kTensorCores && kOwnDims <= kHeldDims;

  // A thread copies the same chunks of a row in every pass over the keys.
  static constexpr int kLanesOfKey = LargestPowerOfTwoIn(kStoredKeyChunks) < kGroupThreads
                                         ? LargestPowerOfTwoIn(kStoredKeyChunks)
                                         : kGroupThreads;
  static constexpr int kChunkPasses = kStoredKeyChunks / kLanesOfKey;
  static constexpr int kKeysPerPass = kGroupThreads / kLanesOfKey;

  static_assert(kGroupWarps == 1 || kWarpsN == 1 || !kConverts,
                "all threads of the CTA exchange converted keys");
  static_assert(kKeys % (kTensorCores ? 16 : 8) == 0, "an MMA takes 16 or 8 keys at a time");
  static_assert(kOwnDims % 16 == 0, "an MMA takes 16 dims at a time");
  static_assert(kWarpsD == 1 || kWarpsD == 2 || kWarpsD == 4, "DimsChunkAt()");
  static_assert(kKeys <= kGroupThreads, "a thread looks up one key of a KV tile");
  static_assert(kKeyChunks % 8 == 0 && kValueChunks % 8 == 0, "the swizzle permutes 8 chunks");
  static_assert(kStoredKeyChunks % 4 == 0 && kStoredValueChunks % 4 == 0,
                "the swizzle permutes 4 stored chunks");
  static_assert(!kFp8 || std::is_same_v<Element, __half>, "fp8 is multiplied in float16");
  static_assert(kKeys % kKeysPerPass == 0 && kRows * kKeyChunks % kThreads == 0,
                "every thread copies the same number of chunks");
  static_assert(kValuesInKeys || kHeadDimQk == kHeadDimV, "K and V share the copy loop");
  static_assert(kKeysPerPass == 1 || kKeysPerPass % 2 == 0);

  // Synchronises all threads that compute.
  static __device__ __forceinline__ void Sync() { __syncthreads(); }

  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return row * kKeyChunks + (chunk ^ (row & 7));
  }
  // Index of a chunk of a row of Q or K: half `half` of 16-dim slice `step` of warp `part`, of the
  // kWarpsD warps with the same rows. The slices of these warps are interleaved, so a lane's reads
  // of one row differ only in the `step` term.
  static __device__ __forceinline__ int DimsChunkAt(int row, int part, int step, int half) {
    const int chunk = step * kWarpsD * 2;
    return row * kKeyChunks + (chunk & ~7) + ((chunk & 7) ^ ((part * 2 + half) ^ (row & 7)));
  }
  static __device__ __forceinline__ int ValueChunkAt(int key, int chunk) {
    return key * kValuePitch + (chunk ^ (key & 7));
  }

  // Swizzle of a row's chunks of K and V as stored. If a row has an odd multiple of 4 chunks,
  // adjacent rows are in different banks anyway, and share a permutation.
  static constexpr __device__ __forceinline__ int StoredPermutation(int row) {
    return kStoredKeyChunks % 8 == 0 ? row & 7 : row >> 1 & 3;
  }
  // DimsChunkAt() for stored chunks of 16 dims.
  static __device__ __forceinline__ int StoredDimsChunkAt(int key, int part, int step) {
    constexpr int kLow = kStoredKeyChunks % 8 == 0 ? 7 : 3;
    const int chunk = step * kWarpsD;
    return key * kStoredKeyChunks + (chunk & ~kLow) +
           ((chunk & kLow) ^ (part ^ StoredPermutation(key)));
  }
  static __device__ __forceinline__ int StoredValueChunkAt(int key, int chunk) {
    return key * kStoredValuePitch + (chunk ^ StoredPermutation(key));
  }
};

// Byte offsets of a key's K and V from the first element of the KV head.
struct __align__(16) KeyOffsets {
  int64_t k;
  int64_t v;  // if AttentionKernelParams::rope_dim > 0, offset of the key's rope part
};

// Index of this warp among the warps with the same rows.
template <typename Traits>
__device__ __forceinline__ int WarpPart() {
  return Traits::kWarpsD == 1 ? 0 : threadIdx.x / 32 % Traits::kWarpsD;
}

// The first of the warp's 16 rows of the tile.
template <typename Traits>
__device__ __forceinline__ int WarpRow() {
  return threadIdx.x / 32 % Traits::kGroupWarps / Traits::kWarpsD * 16;
}

template <typename Traits>
struct AttentionShared {
  static constexpr int kKeyStepChunks = Traits::kKeys * Traits::kStoredKeyChunks;
  static constexpr int kValueStepChunks =
      Traits::kValuesInKeys ? 0 : Traits::kKeys * Traits::kStoredValueChunks;
  // A row is padded by 8 floats, so that the rows of a fragment are in different banks.
  static constexpr int kOutStride = Traits::kHeadDimV + 8;

  // A pipeline stage of a warp group: K, then V. If Traits::kConverts, stage 0 is the converted KV
  // tile, and stage 1 buffers unconverted keys.
  struct Stage {
    uint4 chunks[kKeyStepChunks + kValueStepChunks];

    __device__ uint4* k() { return chunks; }
    __device__ uint4* v() { return Traits::kValuesInKeys ? chunks : chunks + kKeyStepChunks; }
  };
  // Layout while keys are processed.
  struct Tiles {
    Stage stages[Traits::kWarpsN][Traits::kStages];
    uint4 q[Traits::kRows * Traits::kKeyChunks];
  };
  // Layout after the last KV tile: the sums of each warp group, still to be added up.
  struct Results {
    float out[Traits::kWarpsN][Traits::kRows][kOutStride];
    float max[Traits::kWarpsN][Traits::kRows];
    float sum[Traits::kWarpsN][Traits::kRows];
    // lse of the CTA's KV split, if a cluster combines the splits through DSMEM.
    float lse[Traits::kRows];
  };
  // Layout while partials are combined: 4 columns per thread and partial.
  static constexpr int kCombineSlotsOfOut =  // slots that overlap group 0's sums
      (sizeof(Results::out[0]) + 16 * Traits::kThreads - 1) / (16 * Traits::kThreads);
  static constexpr int kCombineSlotsOfTiles = static_cast<int>(
      (Traits::kQueriesAhead ? sizeof(Tiles::stages) : sizeof(Tiles)) / (16 * Traits::kThreads));
  // If group 0's sums are larger than Tiles, two more slots for partials follow them.
  static constexpr int kCombineSlots =
      kCombineSlotsOfTiles >= kCombineSlotsOfOut ? kCombineSlotsOfTiles : kCombineSlotsOfOut + 2;
  struct Merge {
    uint4 slots[kCombineSlots][Traits::kThreads];
  };
  static_assert(kCombineSlots > kCombineSlotsOfOut);
  // Partial logits of a KV tile, exchanged between warps with the same rows. If Q is in registers,
  // they reuse the memory of Q's rows.
  using Parts = float4[Traits::kWarpsD][Traits::kKeyTiles][32];
  struct Exchange {
    Parts parts[Traits::kWarpsM];
  };
  struct Nothing {};

  union {
    Tiles tiles;
    Results results;
    Merge merge;
  };
  WorkUnit units[2];  // the current unit and the next unit
  KeyOffsets offsets[Traits::kWarpsN][Traits::kOffsetSteps][Traits::kKeys];
  std::conditional_t<(Traits::kWarpsD > 1 && !Traits::kHoldQ), Exchange, Nothing> exchange;
  // Rotary embedding: the angle per position of each pair of dims, in units of 2^-64 of a circle.
  uint64_t turns[Traits::kRotates ? Traits::kHeadDimQk / 2 : 1];
  // KvLoading::kFp8: factors of the logits of each query row (LoadScaledQueries()).
  float row_scales[Traits::kFp8 ? Traits::kRows : 1];
  int is_last_arrival;
  uint32_t shares_to_merge;  // cooperative combine: bit mask of this CTA's slices
  int first_inert_token;

  // The partial logits of the 16 rows that begin at row 16 * warp_m.
  __device__ __forceinline__ Parts& PartsOf(int warp_m) {
    if constexpr (Traits::kHoldQ) {
      static_assert(sizeof(Parts) <= 16 * Traits::kKeyChunks * sizeof(uint4));
      return reinterpret_cast<Parts&>(tiles.q[warp_m * 16 * Traits::kKeyChunks]);
    } else {
      return exchange.parts[warp_m];
    }
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_TILE_TRAITS_CUH_
