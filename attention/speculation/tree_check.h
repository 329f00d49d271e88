// Host checks that parents form a tree of draft tokens (attention/speculation/token_tree.h).

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/speculation/token_tree.h"

namespace reprise {

// Checks that the parents form a tree of at most 64 nodes.
// Errors: InvalidArgument that names the node and its parent, for no nodes or more than 64 nodes, a
// parent that is not a node, a cycle ("a cycle through nodes 2, 4"), or a parent after its child.
// Does not allocate unless the check fails.
absl::Status CheckTree(absl::Span<const int32_t> parents);

// Like CheckTree(), for any positive number of nodes.
absl::Status CheckParents(absl::Span<const int32_t> parents);

// Checks that the trees of different rows do not overlap, unless all rows have the same tree or the
// parents are by token.
// `max_nodes` is the maximum number of nodes per row. REQUIRES: parents.has_trees().
// Errors: InvalidArgument for parents.row_stride.
absl::Status CheckParentStride(const TreeParents& parents, int max_nodes, int num_rows);

// Returns the masks of all nodes. Errors: those of CheckTree().
absl::StatusOr<std::vector<uint64_t>> TreeMasks(absl::Span<const int32_t> parents);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_CHECK_H_
