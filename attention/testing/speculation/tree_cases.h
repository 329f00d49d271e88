// Random batches, for tests of the tokens of trees.
//
//   const TreeShape shape = DrawTreeShape(random);
//   BuilderMemory<TreeTokensArgs> memory(
//       [&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); });
//   DrawTreeTokens(random, shape, /*hostility=*/0, memory.args());
//   TreeTokensOnHost(memory.args());
//
// Rows are trees, rows without drafts, or inert. Hostility is the probability that a value is
// invalid: a length or index out of range, a parent that is not an earlier node. With hostility 0,
// no row has a fault.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_ATTENTION_TESTING_SPECULATION_TREE_CASES_H_
#define REPRISE_ATTENTION_TESTING_SPECULATION_TREE_CASES_H_

#include <cstdint>
#include <ostream>

#include "reprise/attention/speculation/tree_tokens_args.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

struct TreeShape {
  int num_rows = 6;
  int num_tables = 8;
  int max_nodes = 5;  // 1 to 64
  int num_groups = 1;
  int num_dims = 1;  // components of a position
  int64_t parent_stride = TreeParents::kByToken;
  bool has_logits = true;  // first_verified and sample_offset
  bool has_faults = true;

  int num_tokens() const { return num_rows * max_nodes; }
  int num_logits() const { return num_rows + num_tokens(); }
};

std::ostream& operator<<(std::ostream& out, const TreeShape& shape);

// Draws up to 9 rows, or up to 300, with trees of up to 64 nodes.
TreeShape DrawTreeShape(Random& random);

TreeTokensArgs CarveTreeTokens(const TreeShape& shape, ArrayCarver& carver);

// Fills the trees, and the batch with the results of a chain builder.
void DrawTreeTokens(Random& random, const TreeShape& shape, double hostility, TreeTokensArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_SPECULATION_TREE_CASES_H_
