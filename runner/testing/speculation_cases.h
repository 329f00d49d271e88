// Random steps with drafts for the tests of the operations of runner/speculation.
//
//   const SpeculationShape shape = DrawSpeculationShape(random);
//   BuilderMemory<NgramDraftsArgs> memory(
//       [&](ArrayCarver& carver) { return CarveNgramDrafts(shape, carver); });
//   DrawNgramDrafts(random, shape, memory.args());
//   NgramDraftsOnHost(memory.args());
//
// CarveX() makes the arguments of shape `shape` over memory of a carver, DrawX() fills what the
// operation reads: rows of one token, chunks of prompts, rows with drafts of either kind, and
// padded rows, over slots in any order.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_

#include <ostream>
#include <random>
#include <vector>

#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/speculation/draft_rows_args.h"
#include "reprise/runner/speculation/ngram_drafts_args.h"

namespace reprise {

struct SpeculationShape {
  int num_rows = 6;
  int num_slots = 8;    // at least num_rows
  int max_drafts = 4;   // 1 to kMaxDrafts
  int vocab_size = 20;  // small ones repeat themselves
  int max_blocks = 8;
  int block_size = 4;
  int num_blocks = 60;
  std::vector<KvGroupSpec> groups = {{}};
  int pass = 0;                // of a draft model, 0 to max_drafts
  int history_offset = 0;      // elements before the first history: 1 misaligns it
  int history_gap = 0;         // elements between histories
  bool keeps_logits = false;   // whether DraftRowsArgs of chains have logits_stride
  bool has_trees = false;      // rows with drafts are trees, max_drafts up to 63
  std::vector<int> tree = {};  // DraftLevel::tree
  int min_ngram = 1;
  int max_ngram = 4;

  int max_positions() const { return max_blocks * block_size; }
  int max_tokens() const { return num_rows * (1 + max_drafts); }
};

std::ostream& operator<<(std::ostream& out, const SpeculationShape& shape);

// Few rows or some hundreds, short texts or long ones.
SpeculationShape DrawSpeculationShape(std::mt19937& random);

// With trees of 2 to 64 nodes.
SpeculationShape DrawTreeShape(std::mt19937& random);

// The same for the passes of a draft model.
SpeculationShape DrawTreeRowsShape(std::mt19937& random);

NgramDraftsArgs CarveNgramDrafts(const SpeculationShape& shape, ArrayCarver& carver);
DraftRowsArgs CarveDraftRows(const SpeculationShape& shape, ArrayCarver& carver);

void DrawNgramDrafts(std::mt19937& random, const SpeculationShape& shape, NgramDraftsArgs& args);
// `hostility`: the probability that a block is missing or out of range.
void DrawDraftRows(std::mt19937& random, const SpeculationShape& shape, double hostility,
                   DraftRowsArgs& args);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_
