// The tiles of attention/work_map/verify_tile.h as types and constants: those of a decode tile of
// the same type and head dim (tile_traits.cuh), but for the number of warps and keys.

#ifndef REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_TRAITS_CUH_
#define REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_TRAITS_CUH_

#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/attention/work_map/verify_tile.h"

namespace reprise {

constexpr int DecodeTileIndexOf(const AttentionTile& tile) {
  return AttentionTileIndex(tile.dtype, tile.head_dim_qk, kDecodeRows);
}

// Traits of kVerifyTiles[kIndex].
template <int kIndex, KvLoading kLoadingOfTile>
struct VerifyTraits : TileTraits<DecodeTileIndexOf(kVerifyTiles[kIndex]), kLoadingOfTile> {
  using Decode = TileTraits<DecodeTileIndexOf(kVerifyTiles[kIndex]), kLoadingOfTile>;

  static constexpr AttentionTile kTile = kVerifyTiles[kIndex];
  static constexpr int kWarpsM = kTile.warps_m;
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kGroupWarps = kWarpsM;
  static constexpr int kGroupThreads = kGroupWarps * 32;
  static constexpr int kThreads = kGroupThreads * kWarpsN;
  static constexpr int kRows = kTile.rows();
  static constexpr int kKeys = KeysOfStep(kTile, kLoadingOfTile);
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kKeysPerPass = kGroupThreads / Decode::kLanesOfKey;

  static_assert(kTile.warps_d == Decode::kWarpsD && kTile.head_dim_v == Decode::kHeadDimV);
  static_assert(kLoadingOfTile != KvLoading::kConverted);
  static_assert(Decode::kGroupThreads > Decode::kLanesOfKey,
                "more threads do not change the lanes");
  static_assert(kKeys % 16 == 0 && kKeys <= kGroupThreads && kKeys <= 128);
  static_assert(kKeys % kKeysPerPass == 0 && kRows * Decode::kKeyChunks % kThreads == 0);
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_VERIFY_VERIFY_TRAITS_CUH_
