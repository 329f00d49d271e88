// Batches whose rows are trees of draft tokens: verification of a token tree in one pass, and
// drafting of a tree whose shape is known beforehand (Medusa, EAGLE-1). S6.
//
// One sequence of 10 tokens in blocks of 4, {7, 2, 9, 5}; the tree of attention/token_tree.h:
//
//   BuildTreeBatch({.slots = {0}, .seq_len = {10}, .num_nodes = {5}, .parents = {-1, 0, 0, 1, 2},
//                   ...})
//   seq_len 15, tail_len 5, tail_mask 1 11 101 1011 10101 (binary)
//   positions 10 11 11 12 12       slot_mapping 38 39 20 21 22: tokens 10..14 of the table
//
// Node 0 is the last sampled token, whose keys are not in the cache yet; every node is a query.
// Nodes stand in the cache by their number, so any block size does; what is accepted is moved
// together afterwards (attention/accept_drafts.h). A row of nodes {-1, 0, 1, ...} is a chain.
//
// Trees that would pass max_context_len, or the table's width, are clipped to their first nodes:
// those with prefix + number below the limit.
//
// A row that cannot be served is inert and reported (attention/row_fault.h): kTableRow, kLength
// (also more than max_nodes nodes), kNoBlock and kNoRoom as in attention/chain_batch.h, and kTree
// for a node that does not stand behind its parent, cycles among them.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and in the sum of the
// nodes' depths; no allocation.

#ifndef ATTENTION_TREE_BATCH_H_
#define ATTENTION_TREE_BATCH_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/paged_batch.h"
#include "attention/tree_batch_args.h"

namespace reprise {

// The batch that the arrays make, on the host or on the device.
PagedBatch TreeBatchOf(const TreeBatchArgs& args);

// What must hold of the sizes, whatever the arrays hold; tail_len and tail_mask must be there.
// Errors: InvalidArgument naming the field.
absl::Status CheckTreeBatchSizes(const TreeBatchArgs& args);

// What the device does, over host memory. REQUIRES: CheckTreeBatchSizes(args) is OK.
void TreeBatchOnHost(const TreeBatchArgs& args);

// The same with a Status. REQUIRES: arrays.row_faults is there. Errors: InvalidArgument naming the
// size, or the first row that cannot be served, with what it has; of a bad tree, the node and
// whether it is in a cycle. The arrays are then as the device leaves them.
absl::StatusOr<PagedBatch> BuildTreeBatch(const TreeBatchArgs& args);

}  // namespace reprise

#endif  // ATTENTION_TREE_BATCH_H_
