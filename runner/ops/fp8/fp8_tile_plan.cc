#include "reprise/runner/ops/fp8/fp8_tile_plan.h"

#include <algorithm>

namespace reprise {
namespace {

// See the comments in runner/ops/few_rows/tile_linear_plan.cc.
constexpr int kMinSharedBytes = 116 * 1024;
constexpr int kMaxSharedBytes = 172 * 1024;
constexpr int kMaxSharedBytesOfLarge = 212 * 1024;
constexpr int kMaxStages = 16;
constexpr int kOtherBytes = 1024 + (2 * kMaxStages + 2) * 8;  // alignment, barriers

}  // namespace

// Weights with fewer rows get smaller tiles, or more CTAs per tile, so that all SMs have work.
// Otherwise tiles are large, because x is read again for each tile. With more rows of x, larger
// tiles gain more than groups that alternate on stages.
TileForm Fp8TileForm(int num_rows, int out_features) {
  if (out_features > 16384) return {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1};
  if (out_features > 8448) return {.cluster = 1, .row_groups = 2, .turns = 2, .boxes = 1};
  if (out_features > 4224) {
    if (num_rows > 48) return {.cluster = 2, .row_groups = 2, .turns = 1, .boxes = 2};
    return {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 1};
  }
  return {.cluster = out_features > 2112 ? 2 : 4,
          .row_groups = 1,
          .turns = num_rows > 32 ? 2 : 4,
          .boxes = 1};
}

Fp8TilePlan PlanFp8Tile(const TileForm& form, int num_rows, int out_features, int in_features,
                        int max_clusters) {
  // Tiles are planned as for a 16-bit weight.
  Fp8TilePlan plan = {PlanTileLinear(form, num_rows, out_features, in_features, max_clusters)};
  plan.stores_directly = false;
  plan.num_boxes = (in_features - 1) / kFp8TileBox + 1;

  // The last box of a stage is read as if the tile were full.
  const int unused_bytes = (form.row_groups * kTileGroupRows - plan.tile_rows) * kTileBoxLine;
  const int tail_bytes = std::max(plan.sums_bytes(), unused_bytes);
  const int most = form.row_groups == kMaxTileGroups ? kMaxSharedBytesOfLarge : kMaxSharedBytes;
  const int room = most - kOtherBytes - tail_bytes;
  plan.stages = std::clamp(room / plan.stage_bytes(), 0, kMaxStages);
  plan.stages -= plan.stages % form.turns;
  if (plan.stages < 2) plan.stages = 0;
  plan.shared_bytes =
      std::max(kMinSharedBytes, kOtherBytes + tail_bytes + plan.stages * plan.stage_bytes());
  return plan;
}

}  // namespace reprise
