// Builds batches whose rows are trees of draft tokens: for verification of a token tree in one
// pass, and for drafting of a tree whose shape is known beforehand (Medusa, EAGLE-1). S6.
//
// One sequence of 10 tokens in blocks of 4, {7, 2, 9, 5}; the tree of
// attention/speculation/token_tree.h:
//
//   BuildTreeBatch({.slots = {0}, .seq_len = {10}, .num_nodes = {5}, .parents = {-1, 0, 0, 1, 2},
//                   ...})
//   seq_len 15, tail_len 5, tail_mask 1 11 101 1011 10101 (binary)
//   positions 10 11 11 12 12       slot_mapping 38 39 20 21 22: tokens 10..14 of the table
//
// Node 0 is the last sampled token, whose keys are not in the cache yet; every node is a query.
// Nodes are in the cache in the order of their numbers, so any block size works; accepted nodes are
// compacted afterwards (attention/speculation/accept_drafts.h). A row of nodes {-1, 0, 1, ...} is a
// chain.
//
// Trees that would exceed max_context_len, or the table's width, are clipped to the nodes with
// prefix + number below the limit: the rest is still a tree, because parents come before children.
//
// An invalid row is inert and reported (base/row_fault.h): kTableRow, kLength (also more than
// max_nodes nodes), kNoBlock and kNoRoom as in attention/metadata/batch_gather.h, and kTree for a
// node that is not after its parent, including cycles.
//
// The builder is two operations: ChainRowsOf() places the nodes as a chain, TreeTokensOf() makes
// chains trees. The runner uses the second one on the rows of its refill.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and in the sum of the
// nodes' depths; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_BATCH_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_BATCH_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/tree_batch_args.h"
#include "reprise/attention/speculation/tree_tokens_args.h"

struct CUstream_st;

namespace reprise {

// The batch over the arrays, on the host or on the device.
PagedBatch TreeBatch(const TreeBatchArgs& args);

// The two operations, in their order.
BatchGatherArgs ChainRowsOf(const TreeBatchArgs& args);
TreeTokensArgs TreeTokensOf(const TreeBatchArgs& args);

// Checks sizes, strides and the presence of arrays, not their content; tail_len and tail_mask are
// required here. Errors: InvalidArgument naming the field.
absl::Status CheckTreeBatch(const TreeBatchArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckTreeBatch(args) is OK.
void TreeBatchOnHost(const TreeBatchArgs& args);

// Calls CheckTreeBatch() and TreeBatchOnHost(). Errors: InvalidArgument from the check, for absent
// row_faults, or for the first invalid row, with its values; for an invalid tree, the node and
// whether it is in a cycle. The arrays are then as the device leaves them.
absl::StatusOr<PagedBatch> BuildTreeBatch(const TreeBatchArgs& args);

// Does the same over device memory: two launches, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckTreeBatch(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target tree_batch_cuda).
absl::Status LaunchTreeBatch(const TreeBatchArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_BATCH_H_
