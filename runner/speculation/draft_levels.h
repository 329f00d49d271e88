// The shape of a proposed tree of drafts (SpeculationOptions::tree): its levels, and its
// construction from widths.
//
//   TreeOfWidths({2, 1}, 3)    {0, 0, 1, 2, 3, 4}    two drafts, then one child of each, twice
//
//   node      0 ─┬─ 1 ── 3 ── 5        LevelsOf(tree, 6): first {0, 1, 3, 5, 7}, num_ranks {2, 1, 1}
//                └─ 2 ── 4 ── 6        RanksOf(tree): 0 1 0 0 0 0
//
// Pure functions. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// The levels of a tree of drafts. Nodes are numbered level by level; node 0 is the only node of
// level 0.
struct DraftLevels {
  bool is_tree = false;
  std::vector<int> first = {};      // [num_levels + 2] first node of each level, then the end
  std::vector<int> num_ranks = {};  // [num_levels] maximum number of children per node of the level

  int num_levels() const { return static_cast<int>(num_ranks.size()); }  // without level 0
  int Width(int level) const { return first[level + 1] - first[level]; }
  // Maximum number of nodes of a level that has children; at least 1.
  int max_width() const;
};

// Returns the levels of the first `num_drafts` drafts of `tree`, or of a chain if `tree` is empty.
// REQUIRES: an empty tree, or CheckDraftTree(tree) is OK and the tree has at least num_drafts
// drafts.
DraftLevels LevelsOf(absl::Span<const int> tree, int num_drafts);

// Returns the child index of each draft: its number among the drafts with the same parent.
std::vector<int32_t> RanksOf(absl::Span<const int> tree);

// Checks that each draft follows an earlier node, that nodes are in order of their levels, and that
// the tree has at most kMaxDrafts levels and kMaxTreeDrafts drafts. Errors: InvalidArgument naming
// the entry of speculation.tree.
absl::Status CheckDraftTree(absl::Span<const int> tree);

// Returns a tree with `depth` levels. Each node of level i has widths[i] children, or 1 if `widths`
// has fewer entries. Errors: InvalidArgument if `widths` is empty, has more entries than levels or
// has an entry below 1, or if CheckDraftTree() would fail.
absl::StatusOr<std::vector<int>> TreeOfWidths(absl::Span<const int> widths, int depth);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_LEVELS_H_
