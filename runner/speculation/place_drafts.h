// Writes the drafts that the passes of draft heads have sampled into the token ids of a step.
//
//   // chosen[i] [rows]: Sample() over the logits of pass i, with arrays.sample_slot
//   LaunchPlaceDrafts({.arrays = arrays, .chosen = chosen, .chosen_stride = max_rows,
//                      .num_rows = 16, .max_drafts = 4}, stream);
//
// Row r gets its first num_proposed[r] drafts, up to the first negative entry of `chosen`: Sample()
// returns a negative token if no token can be sampled. The remaining drafts stay 0. If
// arrays.draft_logits is given, it receives i * chosen_stride + r for draft i: the row of the
// logits that the draft was sampled from.
//
// For a tree, each pass chooses one level: one token per child index. All nodes of the previous
// level get the same children.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU: one launch, which may be
// captured. Does not allocate.

#ifndef REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/place_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckPlaceDrafts(const PlaceDraftsArgs& args);

// Runs on the CPU, over host memory. REQUIRES: CheckPlaceDrafts(args) is OK.
void PlaceDraftsOnHost(const PlaceDraftsArgs& args);

// Enqueues the same work as PlaceDraftsOnHost(), over device memory. Errors: as CheckPlaceDrafts();
// Internal if CUDA rejects the launch. Only in builds with CUDA (target place_drafts_cuda).
absl::Status LaunchPlaceDrafts(const PlaceDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_PLACE_DRAFTS_H_
