// Turns the rows of a batch from chains into trees of draft tokens (S6). Sets the mask and the
// position of each token, and the index of the random number that samples the next token.
//
//   LaunchBatchGather(...);   // or the runner's refill: writes the rows and slots as chains
//   LaunchTreeTokens({.arrays = arrays, .parents = {.nodes = parents}, ...}, stream);
//
// Example: a row of a sequence with 10 keys, with the tree of attention/speculation/token_tree.h:
//
//   node            0   1   2   3   4
//   parents        -1   0   0   1   2
//   positions      10  11  11  12  12     keys before the batch + depth; keys stay at 10 to 14
//   tail_mask       1  11 101 1011 10101  (binary)
//   sample_offset   0   1   1   2   2     indexed by the node's row of logits
//   tail_len        5
//
// Node 0 is the last verified token, whose key is not in the cache yet. Every node is a query. The
// cache holds the nodes in the order of their numbers, so any block size works. The keys of
// accepted nodes are compacted afterwards (attention/speculation/accept_drafts.h). Parents -1 0 1 2
// .. do not change a chain. Rows without a tree get tail_len 0: they attend as in a batch without
// trees. The operation is idempotent.
//
// A row with invalid parents or lengths becomes inert, with a RowFault (base/row_fault.h): kTree
// for a node that does not come after its parent, including cycles; kLength for more than max_nodes
// nodes, and for tokens, keys or logits out of bounds. With kTree, the row's tokens become inert
// too.
//
// Thread safety: not thread-safe; one caller at a time for the same arrays. Cost: linear in rows
// and in the sum of the nodes' depths; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_

#include "absl/status/status.h"
#include "reprise/attention/speculation/tree_tokens_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckTreeTokens(const TreeTokensArgs& args);

// Turns chains into trees in host memory, like LaunchTreeTokens() on the device.
// REQUIRES: CheckTreeTokens(args) is OK.
void TreeTokensOnHost(const TreeTokensArgs& args);

// Turns chains into trees in device memory. May be captured.
// Errors: InvalidArgument from CheckTreeTokens(), before any CUDA call; Internal if the launch
// fails.
// Cost: one launch. Does not synchronise or allocate. Only in builds with CUDA (target
// tree_tokens_cuda).
absl::Status LaunchTreeTokens(const TreeTokensArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_
