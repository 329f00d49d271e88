// Builds batches whose rows are chains: consecutive new tokens after the cached ones.
//
//   verification    1 + k tokens per row: the last sampled one and k drafts; k differs by row
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
// On a GPU, over device memory: LaunchChainBatch(args, stream), and ChainBatch(args) for the batch.
//
// Tokens of a row see each other causally. Drafts that would exceed max_context_len, the table's
// width, or position 2^31 - 2 are clipped; a row without tokens left is empty. Under context
// parallelism all ranks clip the same drafts, tokens of other ranks get slot -1, and a rank without
// a key of the row has seq_len 0 there: out = 0 and lse = -inf, which merging ignores.
//
// A graph of (num_rows, num_tokens, max_query_len) accepts rows of any lengths up to max_query_len.
// An invalid row is inert and reported (base/row_fault.h):
//   kTableRow  slots[r] >= num_tables
//   kLength    a negative length, a seq_len beyond the limit, more than max_query_len tokens
//   kNoBlock   a new token whose block is outside the cache
//   kNoRoom    tokens beyond num_tokens
// Rows with the first two faults take no tokens; rows with the others keep their tokens, which are
// inert.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and new tokens; no
// allocation.

#ifndef REPRISE_ATTENTION_METADATA_CHAIN_BATCH_H_
#define REPRISE_ATTENTION_METADATA_CHAIN_BATCH_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/metadata/chain_batch_args.h"
#include "reprise/attention/paged_batch.h"

struct CUstream_st;

namespace reprise {

// The batch over the arrays, on the host or on the device. It has query_positions only under
// context parallelism. max_seq_len is the table's capacity.
PagedBatch ChainBatch(const ChainBatchArgs& args);

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckChainBatch(const ChainBatchArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckChainBatch(args) is OK.
void ChainBatchOnHost(const ChainBatchArgs& args);

// Calls CheckChainBatch() and ChainBatchOnHost(). Errors: InvalidArgument from the check, for
// absent row_faults, or for the first invalid row, with its values; the arrays are then as the
// device leaves them.
absl::StatusOr<PagedBatch> BuildChainBatch(const ChainBatchArgs& args);

// Does the same over device memory: one launch, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckChainBatch(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target chain_batch_cuda).
absl::Status LaunchChainBatch(const ChainBatchArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_CHAIN_BATCH_H_
