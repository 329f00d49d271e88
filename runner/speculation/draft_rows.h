// The rows of a draft model's passes: each pass feeds it the tokens that it has not seen, or the
// draft that it has just chosen. All of it on the device, captured in the graph of the step:
//
//   for (args.pass = 0; args.pass < max_drafts; ++args.pass) {
//     args.num_tokens = NumDraftTokens(args.pass, num_rows, max_drafts);
//     LaunchDraftRows(args, stream);      // fills args.draft
//     // ... the draft model's forward pass over args.draft, then
//     // Sample({..., .sample_slot = draft.sample_slot, .sample_offset = draft.sample_offset,
//     //         .out = chosen})
//   }
//   args.pass = max_drafts;
//   LaunchDraftRows(args, stream);        // keeps the last draft
//
// A row of the step with num_proposed > 0, whose slot's last token t is at position P =
// context_len, of which the draft model has seen drafted_len tokens; at most 4 drafts:
//
//   P = 9, drafted_len 7, num_proposed 2    pass 0   positions 7 8 9: history[7], history[8], t
//                                           pass 1   position 10: the first draft a
//                                           pass 2   none; token_ids of the row: t a b
//   P = 9, drafted_len 1                    pass 0   positions 1 .. 5: the model only catches up
//
// A tree (args.level) has a pass for each of its levels. Pass 0 is the same; from then on a pass feeds
// all nodes of a level to the draft model, each seeing the nodes before it, and chooses for each as
// many drafts as follow it: by Sample() again and again, each time without those chosen before. With
// tree {0, 0, 1, 1, 2}, nodes 1 and 2 behind node 0, then 3 and 4 behind 1, and 5 behind 2:
//
//   P = 9, drafted_len 9, num_proposed 5    pass 0   position 9: t; then nodes 1, 2
//       level {0, 1, 3}: first_before 0     pass 1   position 10, twice: nodes 1, 2; keys 10, 11
//       level {1, 3, 6}                     pass 2   none: no draft follows; nodes 3, 4, 5
//
// The draft model's layers are in the same groups, tables and blocks as the runner's model. Drafts
// are drawn with the numbers that the sequence itself will draw with (sample_offset = pass), so
// they are right wherever the two models choose alike.
//
// Of each pass that has rows all arrays of `draft` that a step without scores has are written as
// runner/slots/step_arrays.h says, up to the padded sizes; num_faults and row_faults are not. A row
// is inert, without a fault, if a position is beyond the table, or a block of it is missing; then
// the sequence has the drafts that it has got so far, and 0 in place of the others.
//
// The keys of a pass count in drafted_len from the next pass on.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch, which may be
// captured. No allocation. Cost: linear in rows and tokens.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/draft_rows_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckDraftRows(const DraftRowsArgs& args);

// Over host memory. REQUIRES: CheckDraftRows(args) is OK.
void DraftRowsOnHost(const DraftRowsArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target draft_rows_cuda).
absl::Status LaunchDraftRows(const DraftRowsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_ROWS_H_
