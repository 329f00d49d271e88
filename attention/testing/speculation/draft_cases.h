// Random steps, for tests of the rows of a draft model's passes.
//
//   const DraftRowsShape shape = DrawDraftRowsShape(random);
//   BuilderMemory<DraftRowsArgs> memory(
//       [&](ArrayCarver& carver) { return CarveDraftRows(shape, carver); });
//   DrawDraftRows(random, shape, /*hostility=*/{}, memory.args());
//   DraftRowsOnHost(memory.args());
//
// Rows get drafts, have one token, or are padded. Slots are in any order.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_CASES_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_CASES_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "reprise/attention/speculation/draft_rows_args.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

struct DraftRowsShape {
  int num_rows = 6;
  int num_slots = 8;  // at least num_rows
  int max_drafts = 4;
  int vocab_size = 20;
  int max_blocks = 8;
  int block_size = 4;
  int num_blocks = 60;
  std::vector<KvGroupSpec> groups = {{}};
  int pass = 0;
  bool keeps_logits = false;  // chains only
  bool has_faults = true;
  // [num_levels + 2] first node of each level of a tree, then the end. Empty: chains.
  std::vector<int> level_starts = {};
  // [max_drafts] parent of each draft, in the previous level, for all rows. Empty: each row has
  // parents in any earlier level, and no ranks.
  std::vector<int> tree = {};

  int max_positions() const { return max_blocks * block_size; }
  int max_tokens() const { return num_rows * (1 + max_drafts); }
  bool is_tree() const { return !level_starts.empty(); }
  int num_passes() const {
    return is_tree() ? static_cast<int>(level_starts.size()) - 2 : max_drafts;
  }
  int width(int level) const {
    return is_tree() ? level_starts[level + 1] - level_starts[level] : 1;
  }
  int max_width() const;
  int max_ranks() const;  // maximum number of children of a node
};

std::ostream& operator<<(std::ostream& out, const DraftRowsShape& shape);

// Draws a pass of chains, with up to 9 rows or up to 300.
DraftRowsShape DrawDraftRowsShape(Random& random);

// Draws a pass of trees with up to 64 nodes.
DraftRowsShape DrawDraftTreeShape(Random& random);

DraftRowsArgs CarveDraftRows(const DraftRowsShape& shape, ArrayCarver& carver);

// Probabilities of invalid values. Slots stay distinct.
struct DraftHostility {
  double blocks = 0;   // a block that is missing or out of range
  double parents = 0;  // a parent that is not a node of an earlier level
  double values = 0;   // any other index or length out of range
};

// Fills the inputs of the operation and the state.
void DrawDraftRows(Random& random, const DraftRowsShape& shape, const DraftHostility& hostility,
                   DraftRowsArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_DRAFT_CASES_H_
