// The end of a step whose drafts may be trees: accepts the path of nodes that the sequence would
// have chosen itself, advances its slot by it and by one more token, and says which keys to move to
// where the path's order wants them.
//
//   LaunchVerifyTrees({.drafts = {... as for LaunchVerifyDrafts()}, .num_groups = 1,
//                      .move_from = from, .move_to = to, .max_moves = 4}, stream);
//   LaunchMoveKv(...);   // of each group's layers, with its moves
//
// A row of a sequence that ends in 7, with drafts 5 9 2 9 whose parents are 0 0 1 2: 5 or 9 may
// follow 7, 2 may follow 5, another 9 the first. `chosen` after each of the five nodes:
//
//   node         7  5  9  2  9
//   chosen       9  .  9  .  8    new tokens 9 9 8: nodes 2 and 4. Their keys move to 1 and 2
//   chosen       5  2  .  8  .    new tokens 5 2 8: nodes 1 and 3; the latter's keys move to 2
//   chosen       9  .  4  .  .    new tokens 9 4
//   chosen       6  .  .  .  .    new token 6
//
// A node that follows the same node as an earlier one, with the same token, is never accepted. A
// chain gives what LaunchVerifyDrafts() gives (runner/speculation/verify_drafts.h), which says what
// becomes of the slot, of NaN and of rows that do not sample, and moves nothing. The j-th node of a
// path is at least j, so no move overwrites what a later one reads.
//
// Thread safety: none; one caller at a time for the same slots. On a GPU one launch, which may be
// captured. No allocation. Cost: linear in the nodes of the path times those of the row.

#ifndef REPRISE_RUNNER_SPECULATION_VERIFY_TREES_H_
#define REPRISE_RUNNER_SPECULATION_VERIFY_TREES_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/verify_trees_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays, not their content. Errors: InvalidArgument naming the
// field.
absl::Status CheckVerifyTrees(const VerifyTreesArgs& args);

// Over host memory. REQUIRES: CheckVerifyTrees(args) is OK.
void VerifyTreesOnHost(const VerifyTreesArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target verify_trees_cuda).
absl::Status LaunchVerifyTrees(const VerifyTreesArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_VERIFY_TREES_H_
