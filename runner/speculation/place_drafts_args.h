// Arguments of placing drafts (runner/speculation/place_drafts.h), and the work on one row, shared by
// the host and device forms.

#ifndef REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_
#define REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/runner/slots/step_arrays.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

struct PlaceDraftsArgs {
  // Of the step, refilled: query_start_loc and num_proposed are read, token_ids and draft_logits
  // written.
  StepArrays arrays;
  // [max_drafts, chosen_stride] negative: nothing was chosen. By pass; of trees by pass and rank.
  const int32_t* chosen = nullptr;
  int64_t chosen_stride = 0;  // elements from row to row of `chosen`; at least num_rows
  int num_rows = 0;           // padded
  int max_drafts = 0;         // of a row of this step
  // Of trees: of each draft its number among those that follow the same node [max_drafts]. Null: drafts
  // are chains, and the other fields are not read.
  const int32_t* ranks = nullptr;
  int num_levels = 0;                       // passes: 1 to kMaxDrafts
  int32_t end_of_level[kMaxDrafts] = {};    // drafts of pass i and of those before it
  int32_t first_of_level[kMaxDrafts] = {};  // row of `chosen` with the drafts of rank 0 of pass i
};

// The row of `chosen` that draft `i` is in, of pass `level`.
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
