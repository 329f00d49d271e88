// How the kernel of tile_linear.h distributes a GEMM over the CTAs of a GPU. Plain arithmetic, for
// host code and tests. Does not depend on CUDA or LibTorch.
//
//   tile      tile_rows rows of the weight with all in_features, computed by a cluster of CTAs. The
//             weight of a gated GEMM has the gate rows first, then the up rows; a tile of it
//             alternates between 8 gate rows and the 8 matching up rows.
//   stage     the unit of copying of a CTA: `boxes` boxes of 64 in_features of the tile's rows, and
//             the same in_features of x.
//   split     stage s of the CTA with rank r holds `boxes` boxes beginning at box
//             (s * cluster + r) * boxes. The CTAs of a cluster therefore read neighbouring memory
//             at about the same time.
//   group     128 threads that multiply 64 rows of a stage. The `row_groups` groups with index
//             s % turns in the rotation multiply stage s.
//   source    one of the cluster * turns partial sums of an element, ordered by (rank, turn).
//   owner     the CTA with rank r adds the sources of rows [r, r + 1) * owned_rows() of a tile.
//   wide      a GEMM of more than kMaxTileLinearRows rows of x. A thread holds up to 64 sums, and a
//             CTA has no adding threads: wide GEMMs only use forms with one source.
//
// Thread safety: value types.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "reprise/base/host_device.h"

namespace reprise {

// The parameters that are chosen by measurement. Among them, only `cluster`, `turns` and `boxes`
// affect rounding.
struct TileForm {
  int cluster = 2;     // CTAs that share a tile by splitting in_features: 1, 2 or 4
  int row_groups = 1;  // groups of 64 rows of a tile
  int turns = 4;       // groups that alternate on the stages of the same rows
  int boxes = 2;       // boxes of 64 in_features per stage: 1, 2 or 4

  REPRISE_HOST_DEVICE int groups() const { return row_groups * turns; }

  friend bool operator==(const TileForm&, const TileForm&) = default;
};

inline constexpr int kMaxTileGroups = 4;
inline constexpr int kTileGroupRows = 64;
inline constexpr int kTileBox = 64;       // in_features: 128 bytes of 16-bit elements
inline constexpr int kTileBoxLine = 128;  // bytes per row of a box
inline constexpr int kGroupThreads = 128;
inline constexpr int kAddThreads = 128;
inline constexpr int kCopyThreads = 64;        // two warps; one thread of each issues copies
inline constexpr int kMaxTileLinearRows = 64;  // rows of x
inline constexpr int kMaxWideTileRows = 128;   // rows of x, wide GEMMs
inline constexpr int kTileUnit = 8;            // rows of the weight
inline constexpr int kGatedTileUnit = 16;

// Returns the number of threads of a CTA that add sources, in a kernel for `columns` columns.
// MaxTileThreads() is the maximum number of threads of such a CTA, which limits its registers.
REPRISE_HOST_DEVICE constexpr int AddThreads(int columns) {
  return columns > kMaxTileLinearRows ? 0 : kAddThreads;
}
REPRISE_HOST_DEVICE constexpr int MaxTileThreads(int columns) {
  return kMaxTileGroups * kGroupThreads + AddThreads(columns) + kCopyThreads;
}

struct TileLinearPlan {
  TileForm form;
  int columns = 0;    // rows of x rounded up for the kernel: TileColumns()
  int tile_rows = 0;  // multiple of kTileUnit, or kGatedTileUnit if gated; at most row_groups * 64
  int num_tiles = 0;  // the last tile may be partly empty
  int num_clusters = 0;
  int num_boxes = 0;     // boxes of in_features; the last may be partly empty
  int stages = 0;        // multiple of form.turns
  int shared_bytes = 0;  // per CTA
  // Whether the groups store their sums as results, because each is the only source of its
  // elements.
  bool stores_directly = false;

  // Number of threads of a CTA: the groups, then the adding threads, then the copying threads.
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
  // Floats between consecutive rows of x in a buffer of partial sums. The stride is 4 more than a
  // multiple of 16, so that the lanes of a warp use all banks.
  REPRISE_HOST_DEVICE int sums_stride() const { return owned_rows() + 4; }
  REPRISE_HOST_DEVICE int sums_bytes() const { return num_sources() * columns * sums_stride() * 4; }
};

// Whether the rows of a weight are plain or gated, as described above.
enum class TileRows : int8_t { kPlain, kGated };

// Whether the form is valid: fields as described above, and 1 to kMaxTileGroups groups.
bool IsTileForm(const TileForm& form);

// Returns a text such as "cluster 2 rows 64 turns 4 boxes 2".
std::string ToString(const TileForm& form);

// Returns the forms to time for `num_rows` rows of x, 1 to kMaxWideTileRows. Each form is the
// fastest for some shapes of language models on an H200. The forms have static storage duration.
absl::Span<const TileForm> TileFormsToTry(int num_rows);

// Returns the plan of a GEMM with `num_rows` rows of x, 1 to kMaxWideTileRows, for a GPU that can
// run `max_clusters` clusters of this form concurrently. With kGated, out_features is the number of
// rows of the weight, a multiple of kGatedTileUnit. `stages` of the result is 0 if the form cannot
// compute the GEMM: a CTA's shared memory has room for fewer than two stages or fewer than `turns`
// stages, or the GEMM is wide and the form has several sources. REQUIRES: all numbers are positive.
TileLinearPlan PlanTileLinear(const TileForm& form, int num_rows, int out_features, int in_features,
                              int max_clusters, TileRows rows = TileRows::kPlain);

// Returns the number of columns for `num_rows` rows of x: 16, 32, 40, 48 or 64; 96 or 128 if wide.
int TileColumns(int num_rows);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_PLAN_H_
