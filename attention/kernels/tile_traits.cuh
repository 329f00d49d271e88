// An AttentionTile as types and constants, and its shared memory.

#ifndef ATTENTION_KERNELS_TILE_TRAITS_CUH_
#define ATTENTION_KERNELS_TILE_TRAITS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "attention/kernels/attention_tile.h"
#include "attention/kernels/work_unit.cuh"
#include "base/dtype.h"

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

// Of kAttentionTiles[kIndex].
template <int kIndex>
struct TileTraits {
  static constexpr AttentionTile kTile = kAttentionTiles[kIndex];
  using Element = typename ElementOf<kTile.dtype>::Type;

  static constexpr int kHeadDim = kTile.head_dim;
  static constexpr int kWarpsM = kTile.warps_m;
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kWarps = kWarpsM * kWarpsN;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kGroupThreads = kWarpsM * 32;  // share a step of keys
  static constexpr int kRows = kTile.rows();
  static constexpr int kKeys = kTile.keys;
  static constexpr int kStages = 2;

  // Shared memory is in chunks of 16 bytes; those of a row are permuted by the row's number, so
  // that eight rows' chunks of one column stand in different banks.
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(Element));  // elements
  static constexpr int kChunks = kHeadDim / kChunk;                      // of a row

  static constexpr int kKeyTiles = kKeys / 8;     // columns of the logits, 8 at a time
  static constexpr int kOutTiles = kHeadDim / 8;  // columns of out, 8 at a time

  static constexpr bool kTensorCores = sizeof(Element) == 2;
  // Q stays in registers where they suffice.
  static constexpr bool kHoldQ = kTensorCores && kHeadDim <= 128;

  static_assert(kWarpsM == 1 || kWarpsN == 1,
                "groups of several warps have no barrier of their own");
  static_assert(kKeys % 16 == 0, "products take 16 keys at a time");
  static_assert(kKeys <= kGroupThreads, "a thread finds the place of one key of a step");
  static_assert(kChunks % 8 == 0, "the permutation is of 8 chunks");
  static_assert(kKeys * kChunks % kGroupThreads == 0 && kRows * kChunks % kThreads == 0,
                "every thread copies as much");

  static __device__ __forceinline__ int ChunkAt(int row, int chunk) {
    return row * kChunks + (chunk ^ (row & 7));
  }
};

// Where a key's K and V stand, in bytes from the first of the kv head.
struct __align__(16) KeyOffsets {
  int64_t k;
  int64_t v;
};

// Where a row of the tile goes: its first element in out, and its lse among the partials (times
// head_dim_v: its first element there).
struct RowPlace {
  int64_t out;
  int64_t partial;
};

template <typename Traits>
struct AttentionShared {
  static constexpr int kStepChunks = Traits::kKeys * Traits::kChunks;
  // 8 floats more than a row, so that the rows of a fragment stand in different banks.
  static constexpr int kOutStride = Traits::kHeadDim + 8;

  // While the keys are worked through.
  struct Tiles {
    uint4 k[Traits::kWarpsN][Traits::kStages][kStepChunks];
    uint4 v[Traits::kWarpsN][Traits::kStages][kStepChunks];
    uint4 q[Traits::kRows * Traits::kChunks];
  };
  // After them: each group's share, to be added up.
  struct Results {
    float out[Traits::kWarpsN][Traits::kRows][kOutStride];
    float max[Traits::kWarpsN][Traits::kRows];
    float sum[Traits::kWarpsN][Traits::kRows];
    float weight[Traits::kWarpsN][Traits::kRows];
    RowPlace places[Traits::kRows];
  };

  union {
    Tiles tiles;
    Results results;
  };
  WorkUnit units[2];  // the one at hand, and the next
  KeyOffsets offsets[Traits::kWarpsN][Traits::kStages][Traits::kKeys];
  int is_last_arrival;
};

}  // namespace reprise

#endif  // ATTENTION_KERNELS_TILE_TRAITS_CUH_
