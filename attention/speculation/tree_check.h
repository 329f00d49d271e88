// Checks on the host whether parents form a tree of draft tokens
// (attention/speculation/token_tree.h).

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/speculation/token_tree.h"

namespace reprise {

// Errors: InvalidArgument, naming the node and what it has, for zero nodes or more than 64, a
// parent that is not a node, a cycle ("a cycle through nodes 2, 4"), or a parent after its child.
// No allocation unless the check fails.
absl::Status CheckTree(absl::Span<const int32_t> parents);

// The same for any number of nodes from 1.
absl::Status CheckParents(absl::Span<const int32_t> parents);

// Checks that the trees of two rows do not overlap, unless all rows have one. `max_nodes`: of a row.
// REQUIRES: parents.has_trees(). Errors: InvalidArgument naming parents.row_stride.
absl::Status CheckParentStride(const TreeParents& parents, int max_nodes, int num_rows);

// Computes the masks of all nodes. Errors: as CheckTree().
absl::StatusOr<std::vector<uint64_t>> TreeMasks(absl::Span<const int32_t> parents);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_
