// Batches whose rows are chains: new tokens, one behind the other, after what the cache holds.
//
//   verification    1 + k tokens a row: the last sampled one and k drafts; k differs by row
//   draft-extend    the accepted tokens of each row, through the draft model's own table (S13)
//   ranks           any of these, or plain decode and prefill, over the keys of one rank (D4, D14)
//
// Two sequences of 5 and 9 tokens, a limit of 10, three drafts each; block_size 4:
//
//   ChainBatchArgs args = {.slots = {0, 1}, .seq_len = {5, 9}, .query_lens = {3, 3},
//                          .num_certain = 1, ..., .max_context_len = 10, ...};
//   BuildChainBatch(args)     row 0: positions 5 6 7 8, seq_len 9
//                             row 1: position 9, seq_len 10: its drafts would pass the limit
//
// All tokens of a row are causal among each other. Drafts that would pass max_context_len, or the
// table's width, are clipped; a row may thus be left without a token, and is then empty. Under
// context parallelism all ranks clip alike, tokens of other ranks get slot -1, and a rank without a
// key of the row has seq_len 0 there: out = 0 and lse = -inf, which merging leaves out.
//
// In a graph of (num_rows, num_tokens, max_query_len) rows of any lengths up to max_query_len fit.
// A row that cannot be served is inert and reported (attention/row_fault.h):
//   kTableRow  slots[r] >= num_tables
//   kLength    a negative length, a seq_len beyond the limit, more than max_query_len tokens
//   kNoBlock   a new token whose block is not one of the cache
//   kNoRoom    tokens beyond num_tokens
// The first two take no tokens; the tokens of the others are inert where they stand.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and new tokens; no
// allocation.

#ifndef ATTENTION_CHAIN_BATCH_H_
#define ATTENTION_CHAIN_BATCH_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/chain_batch_args.h"
#include "attention/paged_batch.h"

namespace reprise {

// The batch that the arrays make, on the host or on the device. Under context parallelism, and with
// it only, it has query_positions. max_seq_len is the table's capacity.
PagedBatch ChainBatchOf(const ChainBatchArgs& args);

// What must hold of the sizes, whatever the arrays hold. Errors: InvalidArgument naming the field.
absl::Status CheckChainBatchSizes(const ChainBatchArgs& args);

// What the device does, over host memory. REQUIRES: CheckChainBatchSizes(args) is OK.
void ChainBatchOnHost(const ChainBatchArgs& args);

// The same with a Status. REQUIRES: arrays.row_faults is there. Errors: InvalidArgument naming the
// size, or the first row that cannot be served, with what it has; the arrays are then as the device
// leaves them.
absl::StatusOr<PagedBatch> BuildChainBatch(const ChainBatchArgs& args);

}  // namespace reprise

#endif  // ATTENTION_CHAIN_BATCH_H_
