// Builds batches whose rows are trees of draft tokens (S6). Use it to verify a token tree in one
// pass, and to draft a tree whose shape is known in advance (Medusa, EAGLE-1).
//
// Example: a sequence of 10 tokens in blocks {7, 2, 9, 5}, block_size 4, with the tree of
// attention/speculation/token_tree.h:
//
//   BuildTreeBatch({.slots = {0}, .seq_len = {10}, .num_nodes = {5}, .parents = {-1, 0, 0, 1, 2},
//                   ...})
//   seq_len 15, tail_len 5, tail_mask 1 11 101 1011 10101 (binary)
//   positions 10 11 11 12 12       slot_mapping 38 39 20 21 22: tokens 10..14 of the table
//
// Node 0 is the last sampled token, whose key is not in the cache yet. Every node is a query. The
// cache holds the nodes in the order of their numbers, so any block size works. The keys of
// accepted nodes are compacted afterwards (attention/speculation/accept_drafts.h). A row with
// parents {-1, 0, 1, ...} is a chain.
//
// A tree that would exceed max_context_len or the table's width is clipped to the nodes with
// prefix + number below the limit. The remaining nodes are a tree, because parents come before
// children.
//
// An invalid row becomes inert and is reported (base/row_fault.h): kTableRow, kLength (also for
// more than max_nodes nodes), kNoBlock and kNoRoom as in attention/metadata/batch_gather.h, and
// kTree for a node that does not come after its parent, including cycles.
//
// The builder consists of two operations: ChainRowsOf() writes the nodes as a chain, then
// TreeTokensOf() turns the chains into trees. The runner applies the second operation to the rows
// of its refill.
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

// Returns the batch over the arrays, on the host or on the device.
PagedBatch TreeBatch(const TreeBatchArgs& args);

// Return the arguments of the two operations, in order.
BatchGatherArgs ChainRowsOf(const TreeBatchArgs& args);
TreeTokensArgs TreeTokensOf(const TreeBatchArgs& args);

// Checks sizes, strides and the presence of arrays, but not the content of arrays. tail_len and
// tail_mask are required. Errors: InvalidArgument that names the field.
absl::Status CheckTreeBatch(const TreeBatchArgs& args);

// Builds the batch in host memory, like LaunchTreeBatch() on the device.
// REQUIRES: CheckTreeBatch(args) is OK.
void TreeBatchOnHost(const TreeBatchArgs& args);

// Calls CheckTreeBatch() and TreeBatchOnHost(), and returns the batch.
// Errors: InvalidArgument from the check, for absent row_faults, or for the first invalid row, with
// its values. For an invalid tree, the error has the node and whether it is in a cycle. If a row is
// invalid, the arrays hold the same values as after the device form.
absl::StatusOr<PagedBatch> BuildTreeBatch(const TreeBatchArgs& args);

// Builds the batch in device memory. May be captured.
// Errors: InvalidArgument from CheckTreeBatch(), before any CUDA call; Internal if a launch fails.
// Cost: two launches. Does not synchronise or allocate. Only in builds with CUDA (target
// tree_batch_cuda).
absl::Status LaunchTreeBatch(const TreeBatchArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_BATCH_H_
