#include "reprise/runner/speculation/place_drafts.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

absl::Status CheckPlaceDrafts(const PlaceDraftsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.arrays.max_rows));
  const bool is_tree = args.ranks != nullptr;
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("max_drafts", args.max_drafts, 0, is_tree ? kMaxTreeDrafts : kMaxDrafts));
  if (is_tree) {
    REPRISE_RETURN_IF_ERROR(CheckBetween("num_levels", args.num_levels, 1, kMaxDrafts));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("chosen_stride", args.chosen_stride, args.num_rows));
  if (args.num_rows == 0) return absl::OkStatus();
  return CheckGiven({{"chosen", args.chosen},
                     {"arrays.token_ids", args.arrays.token_ids},
                     {"arrays.query_start_loc", args.arrays.query_start_loc},
                     {"arrays.num_proposed", args.arrays.num_proposed}});
}

void PlaceDraftsOnHost(const PlaceDraftsArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) PlaceRowsDrafts(args, r);
}

}  // namespace reprise
