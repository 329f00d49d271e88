// Drafts from a sequence's own tokens: those that followed the newest earlier occurrence of its
// last tokens. (Saxena, "Prompt lookup decoding", 2023.) On the device, from the slots' histories.
//
//   LaunchNgramDrafts({.slots = slots, .arrays = arrays, .num_rows = 16, .min_ngram = 1,
//                      .max_ngram = 3}, stream);
//
// The text 5 6 7 9 7 5 6, four drafts:
//
//   the last tokens "5 6" occur at the beginning, "7 5 6" does not    drafts 7 9 7 5
//
// The text 1 2 3 2 3, four drafts: "2 3" occurs before, and 2 3 followed; behind the end of the
// text the drafts continue with themselves, so that a loop goes on:        drafts 2 3 2 3
//
// For each row with num_proposed > 0: of all earlier ends of its last n tokens, the largest n in
// [min_ngram, max_ngram] counts, and of several the newest end. Tokens of the history that are
// unknown (-1) match nothing, and as drafts they are 0. Where nothing is found token_ids stay as
// they are.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU one launch, which may be
// captured. No allocation. Cost: a row reads its history once.

#ifndef REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/ngram_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckNgramDrafts(const NgramDraftsArgs& args);

// Over host memory. REQUIRES: CheckNgramDrafts(args) is OK.
void NgramDraftsOnHost(const NgramDraftsArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target ngram_drafts_cuda).
absl::Status LaunchNgramDrafts(const NgramDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_
