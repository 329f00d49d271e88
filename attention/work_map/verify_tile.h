// Tiles between those of a decode and those of a prefill: rows of 17 to 32 rows of q, that is,
// drafts to verify (5 queries of 4 heads a group are 20), short last chunks of prompts, and decodes
// of more than 16 heads a group. A tile of 128 rows would be nearly empty for them, and runs one
// CTA a multiprocessor where reading the cache wants two. (From 33 rows on, products without whole
// warpgroups would take longer than reading: 64 rows read half as much a second.)
//
// They are the tiles of attention/work_map/attention_tile.h in all but their kernels
// (attention/cuda/verify): 16-bit types and head dims to 128, keys that need no conversion. Calls
// whose keys do are served by the converting kernel of 128 rows, which can use the same map.
//
// No dependencies, no CUDA.

#ifndef REPRISE_ATTENTION_WORK_MAP_VERIFY_TILE_H_
#define REPRISE_ATTENTION_WORK_MAP_VERIFY_TILE_H_

#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Rows of q of these tiles.
inline constexpr int kVerifyRows = 32;

// Two groups of two warps, each with its own keys. Two stages of K and V are 64 KB of shared memory,
// like those of a decode.
inline constexpr AttentionTile kVerifyTiles[] = {
    {DType::kFloat16, 64, 64, 2, 1, 2, 64, 2},
    {DType::kFloat16, 128, 128, 2, 1, 2, 32, 2},
    {DType::kBFloat16, 64, 64, 2, 1, 2, 64, 2},
    {DType::kBFloat16, 128, 128, 2, 1, 2, 32, 2},
};

// The tile of any kind that serves query ranges of `rows` rows of q: as FindAttentionTile(), which
// knows those of attention_tile.h only.
constexpr const AttentionTile* FindTile(DType q_dtype, int head_dim_qk, int head_dim_v, int rows) {
  const AttentionTile* tile = FindAttentionTile(q_dtype, head_dim_qk, head_dim_v, rows);
  if (tile == nullptr || tile->rows() != kWarpgroupRows || rows > kVerifyRows) return tile;
  for (const AttentionTile& verify : kVerifyTiles) {
    if (verify.dtype == tile->dtype && verify.head_dim_qk == tile->head_dim_qk) return &verify;
  }
  return tile;
}

// The index in kVerifyTiles of the tile for this type and head dim; -1 if it does not exist.
constexpr int VerifyTileIndex(DType dtype, int head_dim_qk) {
  int index = 0;
  for (const AttentionTile& tile : kVerifyTiles) {
    if (tile.dtype == dtype && tile.head_dim_qk == head_dim_qk) return index;
    ++index;
  }
  return -1;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_VERIFY_TILE_H_
