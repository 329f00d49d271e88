// The drafts that a runner can propose and verify, for its scheduler. Without LibTorch.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_

#include <cstdint>
#include <vector>

#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

// Whether a drafter has its own keys in the cache. Such a drafter reads tokens that were decoded without
// drafts in the rows with drafts that follow, at most 1 + num_drafts per row, and proposes nothing
// before it has read all of them. The value says what it has not read after a row with drafts.
enum class DrafterKeys : int8_t {
  kNone,      // it has no keys: it reads tokens or hidden states
  kOfDrafts,  // the newest token, and the last draft if that was accepted: a draft model
  kOfTokens,  // all new tokens: heads that attend, which read accepted drafts again
};

struct DraftCapability {
  int max_drafts = 0;  // maximum number of drafts per row; 0: the runner verifies none
  // Number of drafts in the first i + 1 levels of the tree that is proposed. A sequence accepts at
  // most one draft per level. Empty: drafts are chains.
  std::vector<int> level_drafts = {};
  // Numbers of levels (of chains: of drafts) that have graphs, ascending. A step with fewer takes as
  // long as one with the next of these. Empty: 1, 2, 4, ...
  std::vector<int> graph_levels = {};
  bool has_proposer = true;  // false: the caller gives all drafts
  bool has_trees = false;    // whether the drafts of a row may be a tree
  DrafterKeys keys = DrafterKeys::kNone;
  DraftAcceptance acceptance = DraftAcceptance::kSameText;

  // Maximum number of levels per row: for chains of drafts.
  int max_levels() const;
};

// The capability of a runner with these options. REQUIRES: resolved options.
// `heads_attend`: whether options.heads() has attention layers.
DraftCapability DraftCapabilityOf(const SpeculationOptions& options, bool heads_attend);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_
