// Proposes the tokens that followed the most recent earlier occurrence of the sequence's last
// tokens (Saxena, "Prompt lookup decoding", 2023). Runs on the device, on the histories of the
// slots.
//
//   LaunchNgramDrafts({.slots = slots, .arrays = arrays, .num_rows = 16, .min_ngram = 1,
//                      .max_ngram = 3}, stream);
//
// Example: sequence 5 6 7 9 7 5 6, four drafts.
//
//   the last tokens "5 6" occur at the start, "7 5 6" does not occur before     drafts 7 9 7 5
//
// Example: sequence 1 2 3 2 3, four drafts. "2 3" occurs before, followed by "2 3". After the end
// of the sequence, drafts repeat earlier drafts, which continues the loop: drafts 2 3 2 3.
//
// For each row with num_proposed > 0, the search takes the largest n in [min_ngram, max_ngram]
// whose n-gram occurs earlier, and the most recent of its occurrences. Unknown tokens of the
// history (-1) match no token, and are proposed as 0. If nothing matches, token_ids are not
// changed.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU: one launch, which may be
// captured. Does not allocate. Cost: a row with num_proposed > 0 reads its history once, and up to
// max_ngram tokens again at each occurrence of its last token. Other rows read no history.

#ifndef REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/ngram_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckNgramDrafts(const NgramDraftsArgs& args);

// Runs on the CPU, over host memory. REQUIRES: CheckNgramDrafts(args) is OK.
void NgramDraftsOnHost(const NgramDraftsArgs& args);

// Enqueues the same work as NgramDraftsOnHost(), over device memory. Errors: as CheckNgramDrafts();
// Internal if CUDA rejects the launch. Only in builds with CUDA (target ngram_drafts_cuda).
absl::Status LaunchNgramDrafts(const NgramDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_NGRAM_DRAFTS_H_
