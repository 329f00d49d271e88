// Puts the drafts that heads have chosen, one pass each, among the tokens of a step.
//
//   // chosen[i] [rows]: Sample() over the logits of pass i, with arrays.sample_slot
//   LaunchPlaceDrafts({.arrays = arrays, .chosen = chosen, .chosen_stride = max_rows,
//                      .num_rows = 16, .max_drafts = 4}, stream);
//
// Row r gets its first num_proposed[r] drafts, up to one that is negative: what Sample() says where
// nothing was chosen. The others stay 0. arrays.draft_logits, if it is there, gets i * chosen_stride
// + r for draft i: the row of the logits that it was drawn from.
//
// Of a tree a pass chooses the drafts of a level: for each rank, the number among the drafts that follow the
// same node, one, which all nodes of the level before have in common.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU one launch, which may be
// captured. No allocation.

#ifndef REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/place_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckPlaceDrafts(const PlaceDraftsArgs& args);

// Over host memory. REQUIRES: CheckPlaceDrafts(args) is OK.
void PlaceDraftsOnHost(const PlaceDraftsArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target place_drafts_cuda).
absl::Status LaunchPlaceDrafts(const PlaceDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_
