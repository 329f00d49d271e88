#include "runner/ops/few_rows/tile_linear_plan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

// More than half of an SM's: if two of these CTAs fitted an SM, a dependent launch would put two
// where room is first and none elsewhere. And so little that a CTA of attention, up to 48 KB, fits
// beside it.
constexpr int kLeastSharedBytes = 116 * 1024;
constexpr int kMostSharedBytes = 172 * 1024;
// Of the largest tiles, which are for weights of many rows: no attention is next to those.
constexpr int kMostSharedBytesOfLarge = 222 * 1024;
constexpr int kLargeRowGroups = 3;
constexpr int kMostStages = 16;

constexpr int kAlignmentBytes = 1024;  // lost by aligning the stages
constexpr int kBarrierBytes = (2 * kMostStages + 2) * 8;

// TRIAL
bool Trial(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && value[0] == '1';
}

int DivideUp(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

int TileColumns(int num_rows) {
  if (num_rows <= 16) return 16;
  if (num_rows <= 32) return 32;
  if (num_rows <= 48) return num_rows <= 40 ? 40 : 48;
  return num_rows <= 64 ? 64 : num_rows <= 96 ? 96 : 128;
}

bool IsTileForm(const TileForm& form) {
  const auto is_size = [](int size) { return size == 1 || size == 2 || size == 4; };
  return is_size(form.cluster) && form.row_groups >= 1 && form.row_groups <= kMaxTileGroups &&
         form.turns >= 1 && form.turns <= kMaxTileGroups && form.groups() <= kMaxTileGroups &&
         is_size(form.boxes) && is_size(form.multicast) && form.cluster_ctas() <= kMaxClusterCtas &&
         (form.multicast == 1 || form.boxes == 1);
}

std::string ToString(const TileForm& form) {
  return absl::StrCat("cluster ", form.cluster, " rows ", form.row_groups * kTileGroupRows,
                      " turns ", form.turns, " boxes ", form.boxes, " multicast ", form.multicast);
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
  static constexpr TileForm kUpTo128[] = {
      {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1, .multicast = 2},
      {.cluster = 2, .row_groups = 2, .turns = 1, .boxes = 1, .multicast = 2},
      {.cluster = 4, .row_groups = 2, .turns = 1, .boxes = 1},
      {.cluster = 4, .row_groups = 2, .turns = 1, .boxes = 1, .multicast = 2},
      {.cluster = 4, .row_groups = 3, .turns = 1, .boxes = 1},
      {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
  };
  // TRIAL: REPRISE_TILE_FORMS=2:2:1:1:2,1:4:1:1:1
  static const std::vector<TileForm> trial = [] {
    std::vector<TileForm> forms;
    const char* text = std::getenv("REPRISE_TILE_FORMS");
    while (text != nullptr && *text != 0) {
      TileForm form;
      if (std::sscanf(text, "%d:%d:%d:%d:%d", &form.cluster, &form.row_groups, &form.turns,
                      &form.boxes, &form.multicast) == 5) {
        forms.push_back(form);
      }
      text = std::strchr(text, ',');
      if (text != nullptr) ++text;
    }
    return forms;
  }();
  if (!trial.empty()) return trial;
  if (num_rows <= 32) return kUpTo32;
  if (num_rows <= 64) return kUpTo64;
  return kUpTo128;
}

TileLinearPlan PlanTileLinear(const TileForm& form, int num_rows, int out_features, int in_features,
                              int max_clusters, TileRows rows) {
  TileLinearPlan plan = {.form = form, .columns = TileColumns(num_rows)};
  // As few rounds as the largest tiles need, of tiles as equal as they can be.
  const int unit = rows == TileRows::kGated ? kGatedTileUnit : kTileUnit;
  const int units = DivideUp(out_features, unit);
  const int most_units = form.row_groups * kTileGroupRows / unit;
  const int max_teams = max_clusters * form.multicast;
  const int rounds = DivideUp(DivideUp(units, most_units), max_teams);
  // rounds * max_teams may be beyond the range of int.
  const int64_t shares = int64_t{rounds} * max_teams;
  plan.tile_rows = static_cast<int>((units + shares - 1) / shares) * unit;
  // Teams of a cluster have equally many tiles: they wait for one another.
  plan.num_clusters =
      DivideUp(DivideUp(out_features, plan.tile_rows), form.multicast);  // of one tile a team
  plan.num_tiles = plan.num_clusters * form.multicast;
  plan.num_clusters = std::min(plan.num_clusters, max_clusters);
  plan.num_boxes = DivideUp(in_features, kTileBox);

  // The last box of a stage is read as if the tile were full.
  const int unused_bytes = (form.row_groups * kTileGroupRows - plan.tile_rows) * kTileBoxLine;
  plan.stores_directly = plan.num_sources() == 1;
  plan.sums_in_stages = !plan.stores_directly && plan.num_tiles == plan.num_teams() &&
                        !Trial("REPRISE_TILE_SUMS_APART");
  const int sums_bytes = plan.stores_directly ? 0 : plan.sums_bytes();
  const int tail_bytes = plan.sums_in_stages ? unused_bytes : std::max(sums_bytes, unused_bytes);
  const int most = form.row_groups >= kLargeRowGroups ? kMostSharedBytesOfLarge : kMostSharedBytes;
  // TRIAL: two CTAs fit an SM
  const bool pair = Trial("REPRISE_TILE_PAIR") && out_features > 1 && plan.threads() <= 320;
  const int room = (pair ? 112 * 1024 : most) - kAlignmentBytes - kBarrierBytes - tail_bytes;
  plan.stages = std::clamp(room / plan.stage_bytes(), 0, kMostStages);
  // Each stage has its turn for good, so that a group that is ahead cannot take the phase of a
  // barrier before last for the one it waits for.
  plan.stages -= plan.stages % form.turns;
  int used_bytes = std::max(plan.stages * plan.stage_bytes() + tail_bytes, sums_bytes);
  plan.overlaps = form.turns == 1 && plan.stages > 2 && !Trial("REPRISE_TILE_NO_OVERLAP");
  if (plan.stages < 2 || used_bytes > room + tail_bytes ||
      plan.columns % (kTileUnit * form.multicast) != 0 ||
      plan.threads() > MostTileThreads(plan.columns)) {
    plan.stages = 0;
    used_bytes = 0;
  }
  plan.shared_bytes =
      std::max(pair ? 0 : kLeastSharedBytes, kAlignmentBytes + kBarrierBytes + used_bytes);
  return plan;
}

}  // namespace reprise
