// Builds the rows of a draft model's passes on the device (S5, S13). The first pass feeds the
// tokens that the draft model has not processed yet. Each later pass feeds the draft that the
// previous pass chose. One graph holds all passes of a step:
//
//   for (args.pass = 0; args.pass < max_drafts; ++args.pass) {
//     args.rows.num_tokens = NumDraftTokens(args.pass, num_rows, max_drafts);
//     LaunchDraftRows(args, stream);      // fills args.rows.arrays
//     // ... the draft model's forward pass over these arrays, then
//     // Sample({..., .sample_slot = args.sample_slot, .sample_offset = args.sample_offset,
//     //         .out = chosen})
//   }
//   args.pass = max_drafts;
//   LaunchDraftRows(args, stream);        // stores the last draft
//
// The examples are rows with num_proposed > 0 and at most 4 drafts. The slot's last token t is at
// position P = context_len, and the draft model has processed drafted_len tokens:
//
//   P = 9, drafted_len 7, num_proposed 2    pass 0   positions 7 8 9: history[7], history[8], t
//                                           pass 1   position 10: the first draft a
//                                           pass 2   no tokens; token_ids of the row: t a b
//   P = 9, drafted_len 1                    pass 0   positions 1 .. 5: only catches up
//
// For a tree (args.level) there is one pass per level. Pass 0 is the same as for a chain. Each
// later pass feeds all nodes of one level; a node attends to its path. The caller chooses the
// children of each node with one Sample() per rank, which excludes the tokens of lower ranks. With
// parents {-1, 0, 0, 1, 1, 2}, nodes 1 and 2 are children of node 0, nodes 3 and 4 are children of
// node 1, and node 5 is a child of node 2:
//
//   P = 9, drafted_len 9, num_proposed 5      pass 0   position 9: t
//       level [1, 3), previous level [0, 1)   pass 1   position 10 twice: nodes 1, 2; keys 10, 11
//       level [3, 6), previous level [1, 3)   pass 2   no tokens; stores tokens of nodes 3, 4, 5
//
// If the device chooses the parents of a tree, write the parents of a level before the level's
// pass, write the tokens of its nodes to `chosen`, and leave `ranks` absent.
//
// The draft model's layers may use the same KV groups, tables and blocks as the target model's
// layers. Drafts are sampled with the sequence's random numbers (sample_offset is the draft's
// index), so a draft is accepted if both models choose the same token.
//
// Rows of a pass. Every array of the pass is written up to its padded size: padded rows and tokens
// are inert (attention/metadata/batch_arrays.h). Tokens are packed: a row's tokens follow the
// tokens of the previous row. A row is inert if it gets no drafts or no further drafts, if the
// draft model chose no token for it, or if its tokens would exceed its table or the context limit,
// as is a row with a fault. An inert row keeps the drafts that were stored before. Its further
// drafts keep the token ids of the step's builder: 0 from refill (runner/slots/step_arrays.h).
// row_faults, if present, reports kNoBlock for a missing block, kLength for a negative length,
// kNoRoom if the tokens exceed num_tokens, and kTree for a node that does not follow a node of an
// earlier level, including cycles. A row whose slot or tokens are out of bounds gets no drafts.
//
// Each pass after the first adds the keys of the previous pass to drafted_len; for a level of a
// tree, one key.
//
// Thread safety: not thread-safe; one caller at a time for the same slots. Cost: linear in rows and
// tokens, times the depth for trees; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_
#define REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_

#include "absl/status/status.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/draft_rows_args.h"

struct CUstream_st;

namespace reprise {

// Returns the batch over the arrays of the pass, on the host or on the device.
PagedBatch DraftRowsBatch(const DraftRowsArgs& args);

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckDraftRows(const DraftRowsArgs& args);

// Builds the rows in host memory, like LaunchDraftRows() on the device.
// REQUIRES: CheckDraftRows(args) is OK.
void DraftRowsOnHost(const DraftRowsArgs& args);

// Builds the rows in device memory. May be captured.
// Errors: InvalidArgument from CheckDraftRows(), before any CUDA call; Internal if the launch
// fails.
// Cost: one launch. Does not synchronise or allocate. Only in builds with CUDA (target
// draft_rows_cuda).
absl::Status LaunchDraftRows(const DraftRowsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_ROWS_H_
