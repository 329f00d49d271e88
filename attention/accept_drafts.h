// What becomes of a verified batch once it is known which drafts stay: state, new tokens, and which
// keys and values have to move together.
//
// The tree of attention/token_tree.h behind 10 cached tokens: node 0 and, along its path, nodes 2
// and 4 stay (num_accepted 3, accepted_nodes {0, 2, 4}), and the target chose 77 behind them:
//
//   seq_len 13    last_token 77    next_position 13    new_tokens {token of 2, token of 4, 77}
//   moves         key 12 -> 11, key 14 -> 12: as slots, (20 -> 39), (22 -> 20)
//
// Of chains nothing moves: what stays stands in front already. The keys of drafts that do not stay
// lie behind seq_len, where the next step writes over them. MoveKv() (attention/move_kv.h) does the
// moves, of a row in the order in which they stand here: node j of a path is at least j, so a
// destination is never the source of a later move.
//
// For a draft model with a cache of its own: num_new_tokens and new_tokens are the query_lens and
// tokens of its draft-extend (attention/chain_batch.h); its tree's moves come from the same call
// over its own batch and table.
//
// A row that cannot be served is inert: nothing is accepted and its state stays. It is reported
// (attention/row_fault.h): kTableRow; kLength for num_accepted outside 1..min(query_len,
// max_accepted) or a batch out of bounds; kPath; kToken for a negative next_token. Inert rows of
// the batch (seq_len 0) stay inert without a fault.
//
// Thread safety: none; writes the state. Cost: linear in rows and accepted tokens; no allocation.

#ifndef ATTENTION_ACCEPT_DRAFTS_H_
#define ATTENTION_ACCEPT_DRAFTS_H_

#include "absl/status/status.h"
#include "attention/accept_drafts_args.h"

namespace reprise {

// What must hold of the sizes, whatever the arrays hold. Errors: InvalidArgument naming the field.
absl::Status CheckAcceptDraftsSizes(const AcceptDraftsArgs& args);

// What the device does, over host memory. REQUIRES: the sizes are OK.
void AcceptDraftsOnHost(const AcceptDraftsArgs& args);

// The same with a Status. REQUIRES: row_faults is there. Errors: InvalidArgument naming the size,
// or the first row that cannot be served, with what it has; rows without a fault are done.
absl::Status AcceptDrafts(const AcceptDraftsArgs& args);

}  // namespace reprise

#endif  // ATTENTION_ACCEPT_DRAFTS_H_
