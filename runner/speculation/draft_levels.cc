#include "reprise/runner/speculation/draft_levels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

int DraftLevels::max_width() const {
  int most = 1;
  for (int level = 0; level < num_levels(); ++level) most = std::max(most, Width(level));
  return most;
}

DraftLevels LevelsOf(absl::Span<const int> tree, int num_drafts) {
  DraftLevels levels = {.is_tree = !tree.empty(), .first = {0, 1}};
  const std::vector<int32_t> ranks = RanksOf(tree);
  int depth = 0;  // depth of the previous node
  for (int node = 1; node <= num_drafts; ++node) {
    // A node whose parent is in the newest level begins the next level.
    if (!levels.is_tree || tree[node - 1] >= levels.first[depth]) {
      levels.first.push_back(node);
      levels.num_ranks.push_back(1);
      ++depth;
    }
    levels.first.back() = node + 1;
    if (levels.is_tree) {
      levels.num_ranks.back() = std::max(levels.num_ranks.back(), ranks[node - 1] + 1);
    }
  }
  return levels;
}

std::vector<int32_t> RanksOf(absl::Span<const int> tree) {
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < tree.size(); ++i) {
    ranks.push_back(static_cast<int32_t>(std::count(tree.begin(), tree.begin() + i, tree[i])));
  }
  return ranks;
}

absl::Status CheckDraftTree(absl::Span<const int> tree) {
  REPRISE_RETURN_IF_ERROR(CheckBetween("number of entries of speculation.tree",
                                       static_cast<int64_t>(tree.size()), 1, kMaxTreeDrafts));
  std::vector<int> depth = {0};
  for (size_t i = 0; i < tree.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(CheckBetween(absl::StrCat("speculation.tree[", i, "]"), tree[i], 0,
                                         static_cast<int64_t>(i)));
    depth.push_back(depth[tree[i]] + 1);
    if (depth[i + 1] < depth[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("speculation.tree must be level by level: expected a depth of at least ",
                       depth[i], " of draft ", i, ", got ", depth[i + 1]));
    }
  }
  return CheckBetween("depth of speculation.tree", depth.back(), 1, kMaxDrafts);
}

absl::StatusOr<std::vector<int>> TreeOfWidths(absl::Span<const int> widths, int depth) {
  REPRISE_RETURN_IF_ERROR(CheckBetween("depth of a draft tree", depth, 1, kMaxDrafts));
  REPRISE_RETURN_IF_ERROR(CheckBetween("number of widths of a draft tree",
                                       static_cast<int64_t>(widths.size()), 1, depth));
  std::vector<int> tree;
  int first = 0;  // nodes [first, end) form the newest level
  int end = 1;
  for (int level = 0; level < depth; ++level) {
    const bool has_width = level < static_cast<int>(widths.size());
    const int width = has_width ? widths[level] : 1;
    REPRISE_RETURN_IF_ERROR(
        CheckBetween("width of a level of a draft tree", width, 1, kMaxTreeDrafts));
    for (int node = first; node < end; ++node) tree.insert(tree.end(), width, node);
    REPRISE_RETURN_IF_ERROR(CheckBetween("number of drafts of a draft tree",
                                         static_cast<int64_t>(tree.size()), 1, kMaxTreeDrafts));
    first = end;
    end = 1 + static_cast<int>(tree.size());
  }
  return tree;
}

}  // namespace reprise
