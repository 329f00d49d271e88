// The tile sizes of the attention kernels, by element type, head dim and queries: host data that
// both the work map's plan and the kernels' instantiations follow.
//
// A tile is `rows` rows of q (queries times the heads of a group) against steps of keys. Its CTA
// has warps_m x warps_n warps of 16 rows each: the warps_m warps of a group share a step of `keys`
// keys, and the warps_n groups take turns at the steps.
//
//   decode:  1 x 4 warps, 16 keys a warp: every warp loads its own keys, no barrier in the loop
//   prefill: 4 x 1 warps, 64 keys a CTA: each key is loaded once for 64 rows
//
// No dependencies, no CUDA.

#ifndef ATTENTION_KERNELS_ATTENTION_TILE_H_
#define ATTENTION_KERNELS_ATTENTION_TILE_H_

#include "base/dtype.h"

namespace reprise {

struct AttentionTile {
  DType dtype = DType::kFloat32;
  int head_dim = 0;  // both head dims are padded to it in shared memory; at most so many
  int warps_m = 0;
  int warps_n = 0;
  int keys = 0;         // of a step of one group of warps
  int ctas_per_sm = 0;  // that fit at once; the launch bound

  constexpr int rows() const { return warps_m * 16; }
  constexpr int threads() const { return warps_m * warps_n * 32; }
};

// Every instantiation. Two stages of K and V steps are in shared memory, so that 16-bit decode
// keeps three CTAs of 64 KB on an SM of 228 KB, and no tile needs more than the 99 KB that a CTA
// may have on the smaller cards of compute capability 8.x.
inline constexpr AttentionTile kAttentionTiles[] = {
    {DType::kFloat16, 64, 1, 4, 32, 3},   {DType::kFloat16, 64, 4, 1, 64, 3},
    {DType::kFloat16, 128, 1, 4, 16, 3},  {DType::kFloat16, 128, 4, 1, 64, 2},
    {DType::kFloat16, 256, 1, 2, 16, 3},  {DType::kFloat16, 256, 4, 1, 32, 2},
    {DType::kBFloat16, 64, 1, 4, 32, 3},  {DType::kBFloat16, 64, 4, 1, 64, 3},
    {DType::kBFloat16, 128, 1, 4, 16, 3}, {DType::kBFloat16, 128, 4, 1, 64, 2},
    {DType::kBFloat16, 256, 1, 2, 16, 3}, {DType::kBFloat16, 256, 4, 1, 32, 2},
    {DType::kFloat32, 64, 1, 4, 16, 3},   {DType::kFloat32, 128, 1, 2, 16, 3},
    {DType::kFloat32, 256, 1, 1, 16, 2},
};

inline constexpr int kMaxAttentionHeadDim = 256;

// The tile that serves `rows` rows of q a query range (queries times group size): the smallest head
// dim that holds both, and the fewest rows that hold `rows`, else the most. Null for dtypes and
// head dims that no tile serves.
constexpr const AttentionTile* FindAttentionTile(DType dtype, int head_dim_qk, int head_dim_v,
                                                 int rows) {
  const int head_dim = head_dim_qk > head_dim_v ? head_dim_qk : head_dim_v;
  const AttentionTile* best = nullptr;
  for (const AttentionTile& tile : kAttentionTiles) {
    if (tile.dtype != dtype || tile.head_dim < head_dim) continue;
    if (best && tile.head_dim > best->head_dim) continue;
    if (!best || tile.head_dim < best->head_dim || best->rows() < rows) best = &tile;
  }
  return best;
}

// The place in kAttentionTiles of the tile with exactly these sizes; -1 if there is none.
constexpr int AttentionTileIndex(DType dtype, int head_dim, int rows) {
  int index = 0;
  for (const AttentionTile& tile : kAttentionTiles) {
    if (tile.dtype == dtype && tile.head_dim == head_dim && tile.rows() == rows) return index;
    ++index;
  }
  return -1;
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_TILE_H_
