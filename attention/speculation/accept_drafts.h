// Applies verification: given which drafts of a verified batch are accepted, updates the state and
// computes the new tokens and the moves that compact keys and values.
//
// The tree of attention/speculation/token_tree.h after 10 cached tokens: node 0 and nodes 2 and 4
// on its path are accepted (num_accepted 3, accepted_nodes {0, 2, 4}), and the target chose 77
// after them:
//
//   seq_len 13    last_token 77    next_position 13    new_tokens {token of 2, token of 4, 77}
//   moves         key 12 -> 11, key 14 -> 12: as slots, (20 -> 39), (22 -> 20)
//
// Chains need no moves: accepted tokens are already contiguous. Keys of rejected drafts are past
// seq_len, where the next step overwrites them. MoveKv() (attention/speculation/move_kv.h) performs
// the moves of a row in the order given here. The j-th node of a path is at least j, so a
// destination is never the source of a later move.
//
// For a draft model with its own cache: num_new_tokens and new_tokens are the query_lens and tokens
// of its draft-extend (attention/metadata/chain_batch.h); the moves of its tree come from the same
// call over its own batch and table.
//
// An invalid row is inert: nothing is accepted and its state is unchanged. It is reported
// (base/row_fault.h): kTableRow; kLength for num_accepted outside 1..min(query_len, max_accepted)
// or a batch out of bounds; kPath; kToken for a negative next_token. Inert rows of the batch
// (seq_len 0) stay inert without a fault.
//
// Thread safety: none; writes the state. Cost: linear in rows and accepted tokens; no allocation.

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
