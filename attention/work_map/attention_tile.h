// The tile sizes of the attention kernels, by element type, head dims and queries: host data from
// which both the work map's plan and the kernels' instantiations follow.
//
// A tile is `rows` rows of q (queries times the heads of a group) against steps of keys. Its CTA
// has warps_m x warps_d x warps_n warps of 16 rows each: the warps_m x warps_d warps of a group
// share a step of `keys` keys, and the warps_n groups alternate steps. warps_d warps have the same
// rows and divide the dims of Q K^T and the columns of P V.
//
//   decode:  1 x 1 x 4 warps, 16 keys a warp: every warp loads its own keys, no barrier in the loop
//   prefill: 8 x 1 x 1 warps, 48 or 64 keys a CTA: each key is loaded once for 128 rows; 4 x 1 x 1
//            for head dims to 256
//   MLA, and head dims to 512: 1 x 4 x 1 and 4 x 2 x 1 warps, since 512 columns of out are more
//            than a warp can hold
//
// No dependencies, no CUDA.

#ifndef REPRISE_ATTENTION_WORK_MAP_ATTENTION_TILE_H_
#define REPRISE_ATTENTION_WORK_MAP_ATTENTION_TILE_H_

#include "reprise/base/dtype.h"

namespace reprise {

// Where a tile's V comes from.
enum class ValueSource : int8_t {
  kOwn,      // loaded separately from K
  kKeyTile,  // the first columns of K: absorbed MLA
};

struct AttentionTile {
  DType dtype = DType::kFloat32;  // of the products
  // The largest head dims that the tile serves; smaller ones are padded in shared memory.
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int warps_m = 0;
  int warps_d = 0;
  int warps_n = 0;
  int keys = 0;         // in a step of one group of warps
  int ctas_per_sm = 0;  // that fit on a multiprocessor together; the launch bound
  ValueSource values = ValueSource::kOwn;

  constexpr int rows() const { return warps_m * 16; }
  constexpr int threads() const { return warps_m * warps_d * warps_n * 32; }
};

// Every size. Two stages of K and V steps are in shared memory, 64 KB for 16-bit decode. Only tiles
// for head dims beyond 256, except that of a 16-bit decode with V of its own, need more than the
// 99 KB that a CTA may have on the smaller cards of compute capability 8.x. Two CTAs of a decode
// per multiprocessor read as quickly as three on an H200, and leave fewer pieces to merge. Tiles
// for V in K come before those for head dims to 512, so that the dispatch tries them first.
inline constexpr AttentionTile kAttentionTiles[] = {
    {DType::kFloat16, 64, 64, 1, 1, 4, 32, 2},
    {DType::kFloat16, 64, 64, 8, 1, 1, 64, 1},
    {DType::kFloat16, 128, 128, 1, 1, 4, 16, 2},
    {DType::kFloat16, 128, 128, 8, 1, 1, 48, 1},
    {DType::kFloat16, 256, 256, 1, 1, 2, 16, 3},
    {DType::kFloat16, 256, 256, 4, 1, 1, 32, 2},
    {DType::kFloat16, 576, 512, 1, 4, 1, 32, 2, ValueSource::kKeyTile},
    {DType::kFloat16, 576, 512, 4, 2, 1, 32, 1, ValueSource::kKeyTile},
    {DType::kFloat16, 512, 512, 1, 4, 1, 16, 2},
    {DType::kFloat16, 512, 512, 4, 2, 1, 16, 1},
    {DType::kBFloat16, 64, 64, 1, 1, 4, 32, 2},
    {DType::kBFloat16, 64, 64, 8, 1, 1, 64, 1},
    {DType::kBFloat16, 128, 128, 1, 1, 4, 16, 2},
    {DType::kBFloat16, 128, 128, 8, 1, 1, 48, 1},
    {DType::kBFloat16, 256, 256, 1, 1, 2, 16, 3},
    {DType::kBFloat16, 256, 256, 4, 1, 1, 32, 2},
    {DType::kBFloat16, 576, 512, 1, 4, 1, 32, 2, ValueSource::kKeyTile},
    {DType::kBFloat16, 576, 512, 4, 2, 1, 32, 1, ValueSource::kKeyTile},
    {DType::kBFloat16, 512, 512, 1, 4, 1, 16, 2},
    {DType::kBFloat16, 512, 512, 4, 2, 1, 16, 1},
    {DType::kFloat32, 64, 64, 1, 1, 4, 16, 3},
    {DType::kFloat32, 128, 128, 1, 1, 2, 16, 3},
    {DType::kFloat32, 256, 256, 1, 1, 1, 16, 2},
    {DType::kFloat32, 576, 512, 1, 2, 1, 16, 1, ValueSource::kKeyTile},
    {DType::kFloat32, 512, 512, 1, 4, 1, 8, 1},
};

// The decode tile that also has a kernel of twice as many groups of warps, with one CTA a
// multiprocessor: the one for this head dim, in types of 16 bits and fp8.
inline constexpr int kHeadDimOfWideTiles = 128;

// Rows of the smallest tiles, and of those that warpgroups also serve: warpgroup_kernel.cuh.
inline constexpr int kDecodeRows = 16;
inline constexpr int kWarpgroupRows = 128;

// The largest head dim where V is not the first columns of K.
inline constexpr int kMaxAttentionHeadDim = 512;
// The largest head dim whose columns of out one warp can hold. Beyond it V in K has kernels of its
// own.
inline constexpr int kMaxHeadDimOfOneWarp = 256;
// The largest head dims where it is.
inline constexpr int kMaxLatentHeadDimQk = 576;
inline constexpr int kMaxLatentHeadDimV = 512;

// The type in which q of `q_dtype` is multiplied unless the cache's type decides otherwise: fp8
// becomes bfloat16, which holds every value of it.
constexpr DType ProductType(DType q_dtype) { return IsFp8(q_dtype) ? DType::kBFloat16 : q_dtype; }

// The tile that serves query ranges of `rows` rows of q (queries times group size): the one with
// the smallest head dims that hold both, and the fewest rows that hold `rows`, else the most. Null
// for dtypes and head dims that no tile serves.
constexpr const AttentionTile* FindAttentionTile(DType q_dtype, int head_dim_qk, int head_dim_v,
                                                 int rows) {
  const AttentionTile* best = nullptr;
  for (const AttentionTile& tile : kAttentionTiles) {
    if (tile.dtype != ProductType(q_dtype)) continue;
    if (tile.head_dim_qk < head_dim_qk || tile.head_dim_v < head_dim_v) continue;
    if (best && tile.head_dim_qk > best->head_dim_qk) continue;
    if (!best || tile.head_dim_qk < best->head_dim_qk || best->rows() < rows) best = &tile;
  }
  return best;
}

// The index in kAttentionTiles of the tile with exactly these sizes; -1 if it does not exist.
constexpr int AttentionTileIndex(DType dtype, int head_dim_qk, int rows) {
  int index = 0;
  for (const AttentionTile& tile : kAttentionTiles) {
    if (tile.dtype == dtype && tile.head_dim_qk == head_dim_qk && tile.rows() == rows) return index;
    ++index;
  }
  return -1;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_ATTENTION_TILE_H_
