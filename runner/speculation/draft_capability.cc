#include "reprise/runner/speculation/draft_capability.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "reprise/runner/speculation/draft_levels.h"

namespace reprise {
namespace {

std::vector<int> LevelDraftsOf(const SpeculationOptions& options) {
  std::vector<int> level_drafts;
  if (options.tree.empty()) return level_drafts;
  const DraftLevels levels = LevelsOf(options.tree, options.max_drafts);
  for (int i = 1; i <= levels.num_levels(); ++i) level_drafts.push_back(levels.first[i + 1] - 1);
  return level_drafts;
}

std::vector<int> GraphLevelsOf(const std::vector<int>& graph_num_drafts,
                               const std::vector<int>& level_drafts) {
  if (level_drafts.empty()) return graph_num_drafts;
  std::vector<int> graph_levels;
  for (const int num_drafts : graph_num_drafts) {
    const int levels =
        static_cast<int>(absl::c_upper_bound(level_drafts, num_drafts) - level_drafts.begin());
    if (levels > (graph_levels.empty() ? 0 : graph_levels.back())) graph_levels.push_back(levels);
  }
  return graph_levels;
}

}  // namespace

int DraftCapability::max_levels() const {
  return level_drafts.empty() ? std::min(max_drafts, kMaxDrafts)
                              : static_cast<int>(level_drafts.size());
}

DraftCapability DraftCapabilityOf(const SpeculationOptions& options, bool heads_attend) {
  DraftCapability capability = {.max_drafts = options.max_drafts,
                                .level_drafts = LevelDraftsOf(options),
                                .has_proposer = options.has_proposer(),
                                .has_trees = options.shape == DraftShape::kTree,
                                .acceptance = options.acceptance};
  capability.graph_levels = GraphLevelsOf(options.graph_num_drafts, capability.level_drafts);
  if (options.draft_model() != nullptr) {
    capability.keys = DrafterKeys::kOfDrafts;
  } else if (heads_attend) {
    capability.keys = DrafterKeys::kOfTokens;
  }
  return capability;
}

}  // namespace reprise
