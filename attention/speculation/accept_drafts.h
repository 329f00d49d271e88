// Accepts the drafts of a verified batch: of each row, the drafts that the target model would have
// chosen itself, and one more token. Advances the state of the row's sequence by these new tokens.
// For trees it also plans the moves that make the accepted keys contiguous.
//
//   LaunchAcceptDrafts({.query_start_loc = query_start_loc, ..., .chosen = chosen,
//                       .slot_of_row = slot_of_row, .max_drafts = 4, .slots = slots,
//                       .tokens = tokens, .num_new = num_new, .new_tokens = new_tokens,
//                       .new_tokens_stride = 5}, stream);
//   LaunchMoveKv(...);  // trees only: the layers of each group, with the moves of the group
//
// Chains (no parents). A sequence ends in 7, with drafts 5 9 2. `chosen` are the tokens that the
// model chooses after 7, after 7 5, after 7 5 9 and after 7 5 9 2; N is a negative value:
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
//   chosen   9  .  9  .  8   new tokens 9 9 8: nodes 2 and 4. Their keys move to the places 1 and 2
//   chosen   5  2  .  8  .   new tokens 5 2 8: nodes 1 and 3. The key of node 3 moves to place 2
//   chosen   6  .  .  .  .   new token 6
//
// If two children of a node have the same token, only the first is ever accepted. A tree whose
// parents are -1 0 1 .. gives the results of the chain. A row without drafts has one new token. The
// new tokens equal the tokens of decoding without drafts.
//
// Any sampler may make `chosen`, for example a rejection sampler: after each node it writes the token
// of the child that it accepts, or another token.
//
// State of a slot with n new tokens, from position context_len + 1 on:
//   last_token    the last new token; 0 for kNanRow, a valid id for a step in flight
//   sample_index  increases by n; by 1 for kNanRow
//   seq_len       increases by n - 1. Keys of rejected drafts are past it, where the next step
//                 overwrites them
//   history       receives the new tokens but the last, whose keys are not in the cache. So does
//                 place_tokens
//   drafted_len   is at most context_len + n, if the row has drafts
//
// Moves. The accepted keys of a tree are scattered: node i has the i-th slot of the row. MoveKv()
// (attention/speculation/move_kv.h) performs the moves of a row in the order given here. The j-th
// node of a path is at least node j, so a destination is never the source of a later move. A move
// is left out if either of its slots is negative.
//
// A draft model with its own cache: num_new and new_tokens are the query_lens and tokens of its
// draft-extend (attention/metadata/batch_gather.h). A second call with the draft model's
// slot_mapping, and without state, plans the moves in the draft model's cache.
//
// Outputs of a ring. With output_stride the results go to the output that `output` names on the
// device, or to none; without an output no state changes. So a captured graph may end with the call.
//
// Hostile input. A row whose slot is outside [0, num_slots), or whose tokens, context_len or
// indices of `chosen` are out of bounds, does not sample: kNotSampled, and no state changes.
// row_faults reports kTableRow or kLength (base/row_fault.h); a negative slot is no fault. Parents
// may be any numbers: a node whose parent is not an earlier node is never accepted. The caller's
// slots must differ between rows.
//
// Thread safety: none; writes the state. Cost: linear in accepted drafts for chains, times the nodes
// of the row for trees; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_
#define REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/attention/speculation/accept_drafts_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckAcceptDrafts(const AcceptDraftsArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckAcceptDrafts(args) is OK.
void AcceptDraftsOnHost(const AcceptDraftsArgs& args);

// Calls CheckAcceptDrafts() and AcceptDraftsOnHost(). Errors: InvalidArgument from the check, for
// absent row_faults, or for the first invalid row, with its values; rows without a fault are still
// processed.
absl::Status AcceptDrafts(const AcceptDraftsArgs& args);

// Does the same over device memory: one launch, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckAcceptDrafts(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target accept_drafts_cuda).
absl::Status LaunchAcceptDrafts(const AcceptDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_ACCEPT_DRAFTS_H_
