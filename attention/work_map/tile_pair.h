// Pairs of tiles. A kernel by whole warpgroups has tiles of kWarpgroupRows rows. Head dims beyond
// 128 have tiles of half as many in the other kernels, since a warp's sums take twice the
// registers. One map serves both kinds: its query ranges fill a pair of tiles (TileMap::tile_rows
// is that of the pair), and each kv head has two virtual heads, a tile each, in adjacent CTAs. A
// kernel by whole warpgroups takes both as one tile, in one CTA. A pair's second tile may have no
// rows.
//
// No dependencies, no CUDA.

#ifndef REPRISE_ATTENTION_WORK_MAP_TILE_PAIR_H_
#define REPRISE_ATTENTION_WORK_MAP_TILE_PAIR_H_

#include "reprise/attention/work_map/attention_tile.h"

namespace reprise {

// Whether ranges of more queries than one such tile holds are planned for pairs of them. Not in
// maps with shared prefixes, where a row's own range is often much smaller than a tile.
constexpr bool IsPlannedInPairs(const AttentionTile& tile) {
  return 2 * tile.rows() == kWarpgroupRows && tile.values == ValueSource::kOwn &&
         tile.head_dim_qk <= kMaxHeadDimOfOneWarp;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_TILE_PAIR_H_
