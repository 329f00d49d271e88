// The shape of a tree of drafts that is proposed (SpeculationOptions::tree): its levels, and how it is
// made of widths.
//
//   TreeOfWidths({2, 1}, 3)    {0, 0, 1, 2, 3, 4}    two drafts, then one behind each, twice
//
//   node      0 ─┬─ 1 ── 3 ── 5        LevelsOf(tree, 6): first {0, 1, 3, 5, 7}, num_ranks {2, 1, 1}
//                └─ 2 ── 4 ── 6        RanksOf(tree): 0 1 0 0 0 0
//
// Pure functions, without LibTorch.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// The levels of a tree of drafts: nodes by number, level by level, node 0 alone in level 0.
struct DraftLevels {
  bool is_tree = false;
  std::vector<int> first = {};      // [num_levels + 2] first node of each level; then the end
  std::vector<int> num_ranks = {};  // [num_levels] most drafts that follow a node of the level

  int num_levels() const { return static_cast<int>(num_ranks.size()); }  // of drafts
  int Width(int level) const { return first[level + 1] - first[level]; }
  // Of the levels that drafts follow, at least 1.
  int max_width() const;
};

// Of the first `num_drafts` drafts of a tree; empty: of a chain. REQUIRES: CheckDraftTree(tree) is
// OK, and the tree, if there is one, has so many drafts.
DraftLevels LevelsOf(absl::Span<const int> tree, int num_drafts);

// The number of each draft among those that follow the same node.
std::vector<int32_t> RanksOf(absl::Span<const int> tree);

// InvalidArgument, naming the entry of speculation.tree, unless each draft follows a node before it,
// level by level, and there are at most kMaxDrafts levels and kMaxTreeDrafts drafts.
absl::Status CheckDraftTree(absl::Span<const int> tree);

// A tree of `depth` levels: each node of level i has widths[i] drafts behind it, or 1 if there are
// fewer widths. Errors: InvalidArgument for none or a width below 1, more widths than levels, and as
// CheckDraftTree().
absl::StatusOr<std::vector<int>> TreeOfWidths(absl::Span<const int> widths, int depth);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_
