// Makes the rows with drafts of a refilled step trees: what each token sees, where it is in its
// sequence, and which of the sequence's numbers chooses its token. For steps of runners whose drafts
// may be trees (DraftShape::kTree), at the beginning of the graph.
//
// A row of a sequence with 10 keys, whose drafts have the parents 0 0 1 2
// (attention/speculation/token_tree.h draws it):
//
//   node            0   1   2   3   4
//   parents        -1   0   0   1   2     as refill left them
//   positions      10  11  11  12  12     context_len + depth; keys stay where they are: 10 to 14
//   tail_mask       1  11 101 1011 10101  (binary)
//   sample_offset   0   1   1   2   2     of the rows of logits of the nodes
//   tail_len 5
//
// With parents 0 1 2 .. it is the chain that refill made of it. Rows without drafts have tail_len 0:
// they attend as in any other step. model_positions of a node is its position + the slot's
// position_delta, in all dimensions.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU one launch, which may be
// captured. No allocation. Doing it again changes nothing. Cost: linear in the sum of the depths.

#ifndef REPRISE_RUNNER_SPECULATION_TREE_TOKENS_H_
#define REPRISE_RUNNER_SPECULATION_TREE_TOKENS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/tree_tokens_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckTreeTokens(const TreeTokensArgs& args);

// Over host memory. REQUIRES: CheckTreeTokens(args) is OK.
void TreeTokensOnHost(const TreeTokensArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target tree_tokens_cuda).
absl::Status LaunchTreeTokens(const TreeTokensArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_TREE_TOKENS_H_
