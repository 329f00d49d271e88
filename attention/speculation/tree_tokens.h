// Turns rows of a batch from chains into trees of draft tokens: sets what each token sees, its
// position, and which of the sequence's random numbers chooses the token after it. S6.
//
//   LaunchBatchGather(...);   // or the runner's refill: the rows with their slots, as chains
//   LaunchTreeTokens({.arrays = arrays, .parents = {.nodes = parents}, ...}, stream);
//
// A row of a sequence with 10 keys, and the tree of attention/speculation/token_tree.h:
//
//   node            0   1   2   3   4
//   parents        -1   0   0   1   2
//   positions      10  11  11  12  12     keys before the batch + depth; keys stay at 10 to 14
//   tail_mask       1  11 101 1011 10101  (binary)
//   sample_offset   0   1   1   2   2     by row of logits of the node
//   tail_len        5
//
// Node 0 is the last certain token, whose keys are not in the cache yet; every node is a query. Nodes
// are in the cache in the order of their numbers, so any block size works; accepted nodes are
// compacted afterwards (attention/speculation/accept_drafts.h). Parents -1 0 1 2 .. do not
// change the chain. Other rows get tail_len 0: they attend as in a batch without trees. Doing it again
// changes nothing.
//
// A row that is not a tree becomes inert, with a RowFault (base/row_fault.h): kTree for a node that
// is not after its parent, including cycles; kLength for more than max_nodes nodes, and for tokens,
// keys or logits out of bounds. After kTree its tokens are inert too.
//
// Thread safety: none; one caller at a time for the same arrays. Cost: linear in rows and in the sum
// of the nodes' depths; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_

#include "absl/status/status.h"
#include "reprise/attention/speculation/tree_tokens_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckTreeTokens(const TreeTokensArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckTreeTokens(args) is OK.
void TreeTokensOnHost(const TreeTokensArgs& args);

// Does the same over device memory: one launch, no synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckTreeTokens(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target tree_tokens_cuda).
absl::Status LaunchTreeTokens(const TreeTokensArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_TOKENS_H_
