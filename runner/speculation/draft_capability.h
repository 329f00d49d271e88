// The drafts that a runner can propose and verify. Read by the scheduler. Does not depend on
// LibTorch.

#ifndef REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_
#define REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_

#include <cstdint>
#include <vector>

#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

// Whether a drafter has its own KV cache. A drafter with a KV cache catches up on tokens that were
// decoded without drafts: each later row with drafts feeds it at most 1 + num_drafts of them. It
// proposes nothing before it has processed all of them. The value says which tokens it has not
// processed after a row with drafts.
enum class DrafterKeys : int8_t {
  kNone,      // no KV cache: the drafter reads tokens or hidden states
  kOfDrafts,  // a draft model: the newest token, and the last draft if that draft was accepted
  kOfTokens,  // heads with attention: all new tokens, because accepted drafts are processed again
};

struct DraftCapability {
  int max_drafts = 0;  // maximum number of drafts per row; 0: the runner does not verify drafts
  // Entry i: number of drafts in the first i + 1 levels of the proposed tree. A sequence accepts at
  // most one draft per level. Empty: drafts are chains.
  std::vector<int> level_drafts = {};
  // Numbers of levels (for chains: of drafts) that have graphs, ascending. A step with fewer levels
  // takes as long as a step with the next larger of these numbers. Empty: 1, 2, 4, ...
  std::vector<int> graph_levels = {};
  bool has_proposer = true;  // false: the caller supplies all drafts
  bool has_trees = false;    // whether the drafts of a row may be a tree
  DrafterKeys keys = DrafterKeys::kNone;
  DraftAcceptance acceptance = DraftAcceptance::kSameText;

  // Maximum number of levels that a scheduler plans per row: the levels of the proposed tree, or
  // without one max_drafts, at most kMaxDrafts.
  int max_levels() const;
};

// Returns the capability of a runner with these options. `heads_attend`: whether options.heads()
// has attention layers. REQUIRES: `options` are resolved.
DraftCapability DraftCapabilityOf(const SpeculationOptions& options, bool heads_attend);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_DRAFT_CAPABILITY_H_
