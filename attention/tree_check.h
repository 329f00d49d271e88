// Whether parents make a tree of draft tokens (attention/token_tree.h), on the host.

#ifndef ATTENTION_TREE_CHECK_H_
#define ATTENTION_TREE_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// Errors: InvalidArgument, naming the node and what it has, for no node or more than 64, a parent
// that is no node, a cycle ("a cycle through nodes 2, 4"), a parent behind its child. No allocation
// unless it fails.
absl::Status CheckTree(absl::Span<const int32_t> parents);

// The masks of all nodes. Errors: as CheckTree().
absl::StatusOr<std::vector<uint64_t>> TreeMasks(absl::Span<const int32_t> parents);

}  // namespace reprise

#endif  // ATTENTION_TREE_CHECK_H_
