// Accepts the drafts of a verified batch. The new tokens of a row are the drafts that the target
// model itself would have chosen, and one more token. Advances the state of the row's sequence by
// the new tokens. For trees, also plans the moves that make the accepted keys contiguous.
//
//   LaunchAcceptDrafts({.query_start_loc = query_start_loc, ..., .chosen = chosen,
//                       .slot_of_row = slot_of_row, .max_drafts = 4, .slots = slots,
//                       .tokens = tokens, .num_new = num_new, .new_tokens = new_tokens,
//                       .new_tokens_stride = 5}, stream);
//   LaunchMoveKv(...);  // trees only: once per group, with the group's layers and moves
//
// Chains (no parents). A sequence ends in 7, with drafts 5 9 2. `chosen` holds the tokens that the
// model chooses after 7, after 7 5, after 7 5 9 and after 7 5 9 2. N is a negative value:
//
//   chosen   5  9  4  8      new tokens 5 9 4: two drafts are accepted, the third differs
//   chosen   5  9  2  8      new tokens 5 9 2 8
//   chosen   6  9  2  8      new token 6
//   chosen   5  N  4  8      new token 5: the model cannot choose a second token
//   chosen   N  9  4  8      no new token: the row is kNanRow
//
// Trees (attention/speculation/token_tree.h). A sequence ends in 7, with drafts 5 9 2 9 whose
// parents are 0 0 1 2. `chosen` after each node:
//
//   node     7  5  9  2  9
//   chosen   9  .  9  .  8   new tokens 9 9 8: nodes 2 and 4. Their keys move to slots 1 and 2
//   chosen   5  2  .  8  .   new tokens 5 2 8: nodes 1 and 3. The key of node 3 moves to slot 2
//   chosen   6  .  .  .  .   new token 6
//
// If several children of a node have the same token, only the first child can be accepted. A tree
// with parents -1 0 1 .. gives the same results as a chain. A row without drafts has one new token,
// unless it is kNanRow. The new tokens equal the tokens of decoding without drafts, if the target
// model's choices do not depend on the other tokens of the batch.
//
// Any sampler may write `chosen`. A rejection sampler, for example, writes for each node the token
// of the child that it accepts, or another token.
//
// Effects on the state of a slot with n new tokens, which begin at position context_len + 1:
//   last_token    becomes the last new token; 0 for kNanRow, a valid id for a step in flight
//   sample_index  increases by n; by 1 for kNanRow
//   seq_len       increases by n - 1. Keys of rejected drafts are beyond seq_len, and the next step
//                 overwrites them
//   history       receives the new tokens except the last, whose key is not in the cache
//   place_tokens  receives the same tokens as history
//   drafted_len   is reduced to context_len + n if it is larger and the row has drafts
//
// Moves. The accepted keys of a tree are scattered: the key of node i is in the i-th slot of the
// row. MoveKv() (attention/speculation/move_kv.h) performs the moves of a row in the order given
// here. The j-th node of a path has at least number j, so no destination is the source of a later
// move. A move is omitted if its source or its destination slot is negative.
//
// For a draft model with a separate cache, num_new and new_tokens are the query_lens and tokens of
// its draft-extend (attention/metadata/batch_gather.h). A second call with the draft model's
// slot_mapping, and without state, plans the moves in the draft model's cache.
//
// Ring of outputs. If output_stride is not 0, `output` selects on the device the output that
// receives the results. If it selects no output, no state changes, and there are no moves. A
// captured graph may therefore end with this call.
//
// Invalid input. A row does not sample (kNotSampled), and no state changes, if its slot is outside
// [0, num_slots), or if its tokens, its context_len or its indices of `chosen` are out of bounds.
// row_faults reports kTableRow or kLength (base/row_fault.h). A negative slot is not a fault.
// Parents may have any values: a node whose parent is not an earlier node is never accepted.
// REQUIRES: different rows have different slots.
//
// Thread safety: not thread-safe; writes the state. Cost: linear in accepted drafts for chains; for
// trees, linear in accepted drafts times the nodes of the row. Does not allocate without an error.

#ifndef REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_
#define REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/attention/speculation/accept_drafts_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckAcceptDrafts(const AcceptDraftsArgs& args);

// Accepts drafts in host memory, like LaunchAcceptDrafts() on the device.
// REQUIRES: CheckAcceptDrafts(args) is OK.
void AcceptDraftsOnHost(const AcceptDraftsArgs& args);

// Calls CheckAcceptDrafts() and AcceptDraftsOnHost().
// Errors: InvalidArgument from the check, for absent row_faults, or for the first invalid row, with
// its values. If a row is invalid, all other rows are still processed.
absl::Status AcceptDrafts(const AcceptDraftsArgs& args);

// Accepts drafts in device memory. May be captured.
// Errors: InvalidArgument from CheckAcceptDrafts(), before any CUDA call; Internal if the launch
// fails. Cost: one launch. Does not synchronise or allocate. Only in builds with CUDA (target
// accept_drafts_cuda).
absl::Status LaunchAcceptDrafts(const AcceptDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_
