// The end of a step with drafts: accepts those that the sequence would have chosen itself, and
// advances its slot by them and by one more token.
//
//   Sample({.logits = logits, ..., .sample_offset = arrays.sample_offset, .out = chosen});
//   LaunchVerifyDrafts({.chosen = chosen, .slots = slots, .arrays = arrays, .num_rows = 16,
//                       .max_drafts = 4, .tokens = tokens, .num_new = num_new,
//                       .new_tokens = new_tokens}, stream);
//
// A row whose sequence ends in 7, with drafts 5 9 2; `chosen` are the tokens that the sequence
// chooses after 7, after 7 5, after 7 5 9 and after 7 5 9 2:
//
//   drafts        5  9  2
//   chosen        5  9  4  8      new tokens 5 9 4: two drafts are right, and the third is not
//   chosen        5  9  2  8      new tokens 5 9 2 8
//   chosen        6  9  2  8      new token 6
//   chosen        5  N  4  8      new token 5: N, kNanRow, ends them
//   chosen        N  9  4  8      none: the row is kNanRow
//
// So new tokens are those of plain decoding, whatever the drafts are. Rows without drafts have one.
//
// Of a slot with n new tokens, from position context_len + 1 on:
//   last_token    the last of them; 0 for kNanRow, a valid id for the step in flight
//   sample_index  grows by n; for kNanRow by 1
//   seq_len       grows by n - 1. The keys of rejected drafts are behind it, and are overwritten
//   history       if present, has all of them but the last, whose keys are not in the cache; so has
//                 place_tokens
//   drafted_len   if present, at most context_len + n in rows with drafts
// With output_stride the results go to one of several outputs, which refill names on the device
// (StepArrays::output), or nowhere: then no slot changes. So a captured graph may end with it.
// A row whose sample_slot is outside [0, num_slots) does not sample: kNotSampled, and no slot
// changes.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch, which may be
// captured. No allocation.

#ifndef REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/verify_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckVerifyDrafts(const VerifyDraftsArgs& args);

// Over host memory. REQUIRES: CheckVerifyDrafts(args) is OK.
void VerifyDraftsOnHost(const VerifyDraftsArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target verify_drafts_cuda).
absl::Status LaunchVerifyDrafts(const VerifyDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_VERIFY_DRAFTS_H_
