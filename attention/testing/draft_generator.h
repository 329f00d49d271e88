// Random arguments for the builders of speculative batches: sequences of any length in shuffled
// tables, drafts, and trees. Hostile on request.
//
//   const DraftShape shape = DrawDraftShape(random);
//   BuilderMemory<TreeBatchArgs> memory(
//       [&](ArrayCarver& carver) { return CarveTreeBatch(shape, carver); });
//   DrawTreeBatch(random, shape, /*hostility=*/0, memory.args());
//
// Hostility is the probability that a value is invalid: a table row or block out of range, a length
// that is negative or huge, a parent that is not a node. With hostility 0, every row can be served.
// Table entries after the blocks of a row's new tokens are always invalid or null. Padded rows
// occur between live rows and after them.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_ATTENTION_TESTING_DRAFT_GENERATOR_H_
#define REPRISE_ATTENTION_TESTING_DRAFT_GENERATOR_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/speculation/advance_step_args.h"
#include "reprise/attention/speculation/tree_batch_args.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {

struct DraftShape {
  int num_rows = 4;
  int num_tables = 5;
  int block_size = 4;
  int max_blocks = 20;
  int max_new = 9;  // maximum tokens per row: 1 + k, or nodes of a tree
  int num_tokens = 40;
  int64_t max_context_len = 70;
  int packed_indices = -1;  // capacity of the packed table of AdvanceStep; -1: no packed table

  int num_blocks() const { return num_tables * max_blocks + 1; }
};

std::ostream& operator<<(std::ostream& out, const DraftShape& shape);

// Block sizes from 1 to 32, sequences of up to 300 tokens, chains and trees of up to 64 tokens. The
// context limit is below, at, or above the capacity of the table.
DraftShape DrawDraftShape(Random& random);

// Returns block * block_size + offset, without checks.
int64_t SlotByDefinition(const BlockTableView& table, int row, int64_t position);

// Returns a tree of `num_nodes` nodes. Node 0 is the root, and parents precede their children. Some
// trees are chains or stars, or have several roots.
std::vector<int32_t> DrawTree(Random& random, int num_nodes);

BatchGatherArgs CarveChainBatch(const DraftShape& shape, ArrayCarver& carver);
TreeBatchArgs CarveTreeBatch(const DraftShape& shape, ArrayCarver& carver);
AdvanceStepArgs CarveAdvanceStep(const DraftShape& shape, ArrayCarver& carver);

// Arguments for cross attention: the decoder's rows, and the encoders' lengths and table.
struct CrossDraftArgs {
  BatchGatherArgs decoder;
  CrossBatchArgs cross;
};
CrossDraftArgs CarveCrossDraft(const DraftShape& shape, ArrayCarver& carver);

// The following functions only fill the inputs.
void DrawChainBatch(Random& random, const DraftShape& shape, double hostility,
                    BatchGatherArgs& args);
void DrawTreeBatch(Random& random, const DraftShape& shape, double hostility, TreeBatchArgs& args);
void DrawCrossDraft(Random& random, const DraftShape& shape, CrossDraftArgs& args);
void DrawAdvanceStep(Random& random, const DraftShape& shape, double hostility,
                     AdvanceStepArgs& args);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_DRAFT_GENERATOR_H_
