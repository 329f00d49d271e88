// How the kernel of tile_linear.h divides a product among the CTAs of a GPU: plain arithmetic, for
// host code and tests. No CUDA, no LibTorch.
//
//   tile      tile_rows rows of the weight and all of in_features, computed by a cluster of CTAs. Of
//             a gated product, whose weight has the rows of the gate and then those of its factors:
//             8 of the gate, their 8 factors, and so on.
//   stage     what a CTA copies at once: `boxes` boxes of 64 in_features of the tile's rows, and
//             the same in_features of x.
//   shares    stage s of the CTA with rank r has the boxes from (s * cluster + r) * boxes on, so
//             the CTAs of a cluster read neighbouring memory at about the same time.
//   group     128 threads, which multiply 64 rows of a stage. Stage s is multiplied by the
//             row_groups groups of turn s % turns.
//   source    one of the cluster * turns partial sums of an element, in the order of (rank, turn).
//   owner     the CTA with rank r adds the sources of rows [r, r + 1) * owned_rows() of a tile.
//   wide      of more than kMaxTileLinearRows rows of x. A thread has up to 64 sums, and a CTA no
//             threads that add: wide products have only forms with one source.
//
// Thread safety: values.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "reprise/base/host_device.h"

namespace reprise {

// What is chosen by measurement. The bits of a result depend on `cluster`, `turns` and `boxes`, on
// nothing else.
struct TileForm {
  int cluster = 2;     // CTAs that share a tile, and split in_features: 1, 2 or 4
  int row_groups = 1;  // groups of 64 rows of a tile
  int turns = 4;       // groups that take turns with the stages of the same rows
  int boxes = 2;       // in_features of a stage, in units of 64: 1, 2 or 4

  REPRISE_HOST_DEVICE int groups() const { return row_groups * turns; }

  friend bool operator==(const TileForm&, const TileForm&) = default;
};

inline constexpr int kMaxTileGroups = 4;
inline constexpr int kTileGroupRows = 64;
inline constexpr int kTileBox = 64;       // in_features: 128 bytes
inline constexpr int kTileBoxLine = 128;  // bytes of a row of a box
inline constexpr int kGroupThreads = 128;
inline constexpr int kAddThreads = 128;
inline constexpr int kCopyThreads = 64;        // two warps, of which one thread each copies
inline constexpr int kMaxTileLinearRows = 64;  // of x
inline constexpr int kMaxWideTileRows = 128;   // of x, of wide products
inline constexpr int kTileUnit = 8;            // rows of a weight
inline constexpr int kGatedTileUnit = 16;

// Threads of a CTA that add, of a kernel for so many columns; and all that it has registers for.
REPRISE_HOST_DEVICE constexpr int AddThreads(int columns) {
  return columns > kMaxTileLinearRows ? 0 : kAddThreads;
}
REPRISE_HOST_DEVICE constexpr int MostTileThreads(int columns) {
  return kMaxTileGroups * kGroupThreads + AddThreads(columns) + kCopyThreads;
}

struct TileLinearPlan {
  TileForm form;
  int columns = 0;    // rows of x as the kernel multiplies them: TileColumns()
  int tile_rows = 0;  // a multiple of kTileUnit, gated of kGatedTileUnit; up to row_groups * 64
  int num_tiles = 0;  // the last may be partly empty
  int num_clusters = 0;
  int num_boxes = 0;     // of in_features; the last may be partly empty
  int stages = 0;        // a multiple of form.turns
  int shared_bytes = 0;  // of a CTA
  // Whether the groups store their sums as results: each is the only source of its elements.
  bool stores_directly = false;

  // Of a CTA: those of the groups, then those that add, then those that copy.
  REPRISE_HOST_DEVICE int threads() const {
    return form.groups() * kGroupThreads + AddThreads(columns) + kCopyThreads;
  }
  REPRISE_HOST_DEVICE int owned_rows() const {
    return form.row_groups * kTileGroupRows / form.cluster;
  }
  REPRISE_HOST_DEVICE int stage_bytes() const {
    return form.boxes * (tile_rows + columns) * kTileBoxLine;
  }
  REPRISE_HOST_DEVICE int num_sources() const { return form.cluster * form.turns; }
  // Floats from one row of x to the next in a buffer of partial sums: 4 more than a multiple of 16,
  // so that the lanes of a warp use all banks.
  REPRISE_HOST_DEVICE int sums_stride() const { return owned_rows() + 4; }
  REPRISE_HOST_DEVICE int sums_bytes() const { return num_sources() * columns * sums_stride() * 4; }
};

// What the rows of a weight are, as above.
enum class TileRows : int8_t { kPlain, kGated };

// Whether a form is one at all: values as above, at least one group and at most kMaxTileGroups.
bool IsTileForm(const TileForm& form);

// "cluster 2 rows 64 turns 4 boxes 2"
std::string ToString(const TileForm& form);

// The forms that are worth timing for num_rows, 1 to kMaxWideTileRows, rows of x: each is the
// quickest for some shapes of language models on an H200. They live as long as the program.
absl::Span<const TileForm> TileFormsToTry(int num_rows);

// Returns the plan of a product with num_rows, 1 to kMaxWideTileRows, rows of x, for a GPU that
// runs `max_clusters` clusters of this form at once. All arguments are positive. `stages` is 0 if
// the form cannot compute this: fewer than two stages, or than it has turns, fit a CTA's shared
// memory, or the product is wide and the form has several sources. With kGated out_features are those of the weight, a multiple of kGatedTileUnit.
TileLinearPlan PlanTileLinear(const TileForm& form, int num_rows, int out_features, int in_features,
                              int max_clusters, TileRows rows = TileRows::kPlain);

// 16, 32, 40, 48 or 64; of wide products 96 or 128.
int TileColumns(int num_rows);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_
