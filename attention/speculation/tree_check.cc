#include "reprise/attention/speculation/tree_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Returns the error for a node whose parent is not an earlier node. The message depends on whether
// the node's ancestors form a cycle through the node.
absl::Status RefuseParent(absl::Span<const int32_t> parents, int node) {
  const int num_nodes = static_cast<int>(parents.size());
  std::string path = absl::StrCat(node);
  int32_t at = parents[node];
  for (int steps = 0; steps < num_nodes && at >= 0 && at < num_nodes; ++steps) {
    if (at == node) {
      return absl::InvalidArgumentError(
          absl::StrCat("parents: expected a tree, got a cycle through nodes ", path));
    }
    absl::StrAppend(&path, ", ", at);
    at = parents[at];
  }
  return absl::InvalidArgumentError(absl::StrCat("parents[", node, "]: expected -1 to ", node - 1,
                                                 " (a parent comes before its children), got ",
                                                 parents[node]));
}

}  // namespace

absl::Status CheckTree(absl::Span<const int32_t> parents) {
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("num_nodes", static_cast<int64_t>(parents.size()), 1, kMaxTreeNodes));
  return CheckParents(parents);
}

absl::Status CheckParents(absl::Span<const int32_t> parents) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_nodes", static_cast<int64_t>(parents.size()), 1));
  const int num_nodes = static_cast<int>(parents.size());
  for (int node = 0; node < num_nodes; ++node) {
    if (parents[node] < -1 || parents[node] >= num_nodes) {
      return absl::InvalidArgumentError(absl::StrCat("parents[", node, "]: expected -1 to ",
                                                     num_nodes - 1, ", got ", parents[node]));
    }
  }
  for (int node = 0; node < num_nodes; ++node) {
    if (!IsParent(parents[node], node)) return RefuseParent(parents, node);
  }
  return absl::OkStatus();
}

absl::Status CheckParentStride(const TreeParents& parents, int max_nodes, int num_rows) {
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("parents.row_stride", parents.row_stride, TreeParents::kByToken));
  if (num_rows < 2 || parents.row_stride <= 0) return absl::OkStatus();
  return CheckAtLeast("parents.row_stride", parents.row_stride, max_nodes);
}

absl::StatusOr<std::vector<uint64_t>> TreeMasks(absl::Span<const int32_t> parents) {
  REPRISE_RETURN_IF_ERROR(CheckTree(parents));
  std::vector<uint64_t> masks(parents.size());
  for (size_t node = 0; node < parents.size(); ++node) {
    masks[node] = PathMask(parents.data(), static_cast<int>(node));
  }
  return masks;
}

}  // namespace reprise
