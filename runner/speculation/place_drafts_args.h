// Arguments of placing drafts (runner/speculation/place_drafts.h), and the work on one row, shared by
// the host and device forms.

#ifndef RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_
#define RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_

#include <cstdint>

#include "base/host_device.h"
#include "runner/slots/step_arrays.h"

namespace reprise {

struct PlaceDraftsArgs {
  // Of the step, refilled: query_start_loc and num_proposed are read, token_ids and draft_logits
  // written.
  StepArrays arrays;
  const int32_t* chosen = nullptr;  // [max_drafts, chosen_stride] negative: nothing was chosen
  int64_t chosen_stride = 0;        // elements from pass to pass; at least num_rows
  int num_rows = 0;                 // padded
  int max_drafts = 0;               // of a row of this step
};

REPRISE_HOST_DEVICE constexpr void PlaceRowsDrafts(const PlaceDraftsArgs& args, int row_idx) {
  const int64_t first = int64_t{args.arrays.query_start_loc[row_idx]} + 1;
  const int num_proposed = args.arrays.num_proposed[row_idx];
  for (int i = 0; i < num_proposed && i < args.max_drafts; ++i) {
    const int64_t from = i * args.chosen_stride + row_idx;
    if (args.chosen[from] < 0) return;
    args.arrays.token_ids[first + i] = args.chosen[from];
    if (args.arrays.draft_logits != nullptr) {
      args.arrays.draft_logits[first + i] = static_cast<int32_t>(from);
    }
  }
}

}  // namespace reprise

#endif  // RUNNER_SPECULATION_PLACE_DRAFTS_ARGS_H_
