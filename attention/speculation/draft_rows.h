// The rows of a draft model's passes, made on the device. The first pass feeds the tokens that the
// model has not seen, each later pass the draft that was chosen before it. One graph holds all passes
// of a step. S5, S13:
//
//   for (args.pass = 0; args.pass < max_drafts; ++args.pass) {
//     args.rows.num_tokens = NumDraftTokens(args.pass, num_rows, max_drafts);
//     LaunchDraftRows(args, stream);      // fills args.rows.arrays
//     // ... the draft model's forward pass over these arrays, then
//     // Sample({..., .sample_slot = args.sample_slot, .sample_offset = args.sample_offset,
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
// A tree (args.level) has a pass per level. Pass 0 is the same. Each later pass feeds all nodes of a
// level; a node sees its path. For each node the caller chooses its children: one Sample() per rank,
// without the tokens of the ranks before. With the parents {-1, 0, 0, 1, 1, 2}, nodes 1 and 2 are
// children of node 0, nodes 3 and 4 of node 1, and node 5 of node 2:
//
//   P = 9, drafted_len 9, num_proposed 5    pass 0   position 9: t
//       level: nodes [1, 3), [0, 1) before  pass 1   position 10, twice: nodes 1, 2; keys 10, 11
//       level: nodes [3, 6), [1, 3) before  pass 2   none: keeps the tokens of nodes 3, 4, 5
//
// Trees whose parents the device chooses: write the parents of a level before its pass, and the
// tokens of its nodes to `chosen`, without ranks.
//
// The draft model's layers may be in the same groups, tables and blocks as the model's. Drafts are
// sampled with the sequence's own random numbers (sample_offset is the draft's index), so a draft is
// accepted if both models choose the same token.
//
// Rows of a pass. Every array of the pass is written up to its padded size: padded rows and tokens
// are inert (attention/metadata/batch_arrays.h). Tokens are packed: a row's tokens follow the tokens of
// the previous row. A row is inert if it gets no drafts, if the draft model chose nothing for it, or if
// its tokens would pass the end of its table; then it keeps the drafts so far, and 0 for the others.
// row_faults, if present, reports kNoBlock for a missing block, kLength for a negative length, and
// kTree for a node that does not follow a node of an earlier level, including cycles. A row whose slot
// or tokens are out of bounds gets no drafts.
//
// The next pass adds the keys of a pass to drafted_len.
//
// Thread safety: none; one caller at a time for the same slots. Cost: linear in rows and tokens, for
// trees times the depth; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_
#define REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_

#include "absl/status/status.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/draft_rows_args.h"

struct CUstream_st;

namespace reprise {

// The batch over the arrays of the pass, on the host or on the device.
PagedBatch DraftRowsBatch(const DraftRowsArgs& args);

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckDraftRows(const DraftRowsArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckDraftRows(args) is OK.
void DraftRowsOnHost(const DraftRowsArgs& args);

// Does the same over device memory: one launch, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckDraftRows(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target draft_rows_cuda).
absl::Status LaunchDraftRows(const DraftRowsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_
