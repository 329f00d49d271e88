// Arguments of LaunchPlaceDrafts() (runner/speculation/place_drafts.h), and the work for one row,
// which the host and device forms share.

#ifndef REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/slots/step_arrays.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

struct PlaceDraftsArgs {
  // The step's arrays, after refill. query_start_loc and num_proposed are read; token_ids and
  // draft_logits are written.
  StepArrays arrays;
  // [max_drafts, chosen_stride] sampled tokens, one row per pass; for trees, one row per pass and
  // child index. Negative: no token was sampled.
  const int32_t* chosen = nullptr;
  int64_t chosen_stride = 0;  // elements between rows of `chosen`; at least num_rows
  int num_rows = 0;           // padded
  int max_drafts = 0;         // maximum number of drafts per row of this step
  // [max_drafts] Trees only: child index of each draft. Null: drafts are chains, and the fields
  // below are not read.
  const int32_t* ranks = nullptr;
  int num_levels = 0;                       // passes: 1 to kMaxDrafts
  int32_t end_of_level[kMaxDrafts] = {};    // number of drafts of pass i and earlier passes
  int32_t first_of_level[kMaxDrafts] = {};  // row of `chosen` with pass i's drafts of child index 0
};

// Returns the row of `chosen` that holds draft `i`, which belongs to pass `level`.
REPRISE_HOST_DEVICE constexpr int ChosenRowOf(const PlaceDraftsArgs& args, int level, int i) {
  return args.ranks == nullptr ? i : args.first_of_level[level] + args.ranks[i];
}

REPRISE_HOST_DEVICE constexpr void PlaceRowsDrafts(const PlaceDraftsArgs& args, int row_idx) {
  const int64_t first = int64_t{args.arrays.query_start_loc[row_idx]} + 1;
  const int num_proposed = args.arrays.num_proposed[row_idx];
  int level = 0;
  for (int i = 0; i < num_proposed && i < args.max_drafts; ++i) {
    while (args.ranks != nullptr && level + 1 < args.num_levels && i >= args.end_of_level[level]) {
      ++level;
    }
    const int64_t from = ChosenRowOf(args, level, i) * args.chosen_stride + row_idx;
    if (args.chosen[from] < 0) return;
    args.arrays.token_ids[first + i] = args.chosen[from];
    if (args.arrays.draft_logits != nullptr) {
      args.arrays.draft_logits[first + i] = static_cast<int32_t>(from);
    }
  }
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_
