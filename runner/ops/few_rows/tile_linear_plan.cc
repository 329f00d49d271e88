#include "reprise/runner/ops/few_rows/tile_linear_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"

namespace reprise {
namespace {

// A CTA's shared memory is more than half of an SM's: if two CTAs fitted on an SM, a dependent
// launch would place two CTAs on the SM that has room first, and none on another SM. It is small
// enough that an attention CTA of up to 48 KB can run on the same SM of an H100.
constexpr int kMinSharedBytes = 116 * 1024;
constexpr int kMaxSharedBytes = 172 * 1024;
// For the largest tiles. They serve weights with many rows, whose GEMMs do not follow attention.
constexpr int kMaxSharedBytesOfLarge = 222 * 1024;
constexpr int kMaxStages = 16;

constexpr int kAlignmentBytes = 1024;  // lost to the alignment of the stages
constexpr int kBarrierBytes = (2 * kMaxStages + 2) * 8;

}  // namespace

int TileColumns(int num_rows) {
  if (num_rows <= 16) return 16;
  if (num_rows <= 32) return 32;
  if (num_rows <= 48) return num_rows <= 40 ? 40 : 48;
  return num_rows <= 64 ? 64 : num_rows <= 96 ? 96 : 128;
}

bool IsTileForm(const TileForm& form) {
  return (form.cluster == 1 || form.cluster == 2 || form.cluster == 4) && form.row_groups >= 1 &&
         form.row_groups <= kMaxTileGroups && form.turns >= 1 && form.turns <= kMaxTileGroups &&
         form.groups() <= kMaxTileGroups && (form.boxes == 1 || form.boxes == 2 || form.boxes == 4);
}

std::string ToString(const TileForm& form) {
  return absl::StrCat("cluster ", form.cluster, " rows ", form.row_groups * kTileGroupRows,
                      " turns ", form.turns, " boxes ", form.boxes);
}

absl::Span<const TileForm> TileFormsToTry(int num_rows) {
  static constexpr TileForm kUpTo32[] = {
      {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 1},
      {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 1},
      {.cluster = 2, .row_groups = 1, .turns = 2, .boxes = 1},
      {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 2},
      {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 2},
      {.cluster = 2, .row_groups = 2, .turns = 2, .boxes = 1},
      {.cluster = 1, .row_groups = 2, .turns = 2, .boxes = 1},
      {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
  };
  static constexpr TileForm kUpTo64[] = {
      {.cluster = 2, .row_groups = 1, .turns = 2, .boxes = 1},
      {.cluster = 2, .row_groups = 2, .turns = 1, .boxes = 2},
      {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 1},
      {.cluster = 1, .row_groups = 2, .turns = 2, .boxes = 1},
      {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
      {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 1},
  };
  static constexpr TileForm kWide[] = {
      {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
      {.cluster = 1, .row_groups = 2, .turns = 1, .boxes = 1},
  };
  if (num_rows <= 32) return kUpTo32;
  if (num_rows <= kMaxTileLinearRows) return kUpTo64;
  return kWide;
}

TileLinearPlan PlanTileLinear(const TileForm& form, int num_rows, int out_features, int in_features,
                              int max_clusters, TileRows rows) {
  TileLinearPlan plan = {.form = form, .columns = TileColumns(num_rows)};
  // Uses the number of rounds that the largest tiles need, with tiles of nearly equal size.
  const int unit = rows == TileRows::kGated ? kGatedTileUnit : kTileUnit;
  const int units = CeilDiv(out_features, unit);
  const int max_units = form.row_groups * kTileGroupRows / unit;
  const int rounds = CeilDiv(CeilDiv(units, max_units), max_clusters);
  // rounds * max_clusters may exceed int.
  const int64_t shares = int64_t{rounds} * max_clusters;
  plan.tile_rows = static_cast<int>((units + shares - 1) / shares) * unit;
  plan.num_tiles = CeilDiv(out_features, plan.tile_rows);
  plan.num_clusters = std::min(plan.num_tiles, max_clusters);
  plan.num_boxes = CeilDiv(in_features, kTileBox);

  // The last box of a stage is read as if the tile were full.
  const int unused_bytes = (form.row_groups * kTileGroupRows - plan.tile_rows) * kTileBoxLine;
  plan.stores_directly = plan.num_sources() == 1;
  const int sums_bytes = plan.stores_directly ? 0 : plan.sums_bytes();
  const int tail_bytes = std::max(sums_bytes, unused_bytes);
  const int most = form.row_groups == kMaxTileGroups ? kMaxSharedBytesOfLarge : kMaxSharedBytes;
  const int room = most - kAlignmentBytes - kBarrierBytes - tail_bytes;
  plan.stages = std::clamp(room / plan.stage_bytes(), 0, kMaxStages);
  // A stage always belongs to the same groups of the rotation. Otherwise a fast group could mistake
  // the phase before last of a barrier for the phase it waits for.
  plan.stages -= plan.stages % form.turns;
  if (plan.stages < 2 || (num_rows > kMaxTileLinearRows && !plan.stores_directly)) plan.stages = 0;
  plan.shared_bytes = std::max(kMinSharedBytes, kAlignmentBytes + kBarrierBytes + tail_bytes +
                                                    plan.stages * plan.stage_bytes());
  return plan;
}

}  // namespace reprise
