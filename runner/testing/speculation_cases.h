// Random steps with drafts, for tests of n-gram drafts.
//
//   const SpeculationShape shape = DrawSpeculationShape(random);
//   BuilderMemory<NgramDraftsArgs> memory(
//       [&](ArrayCarver& carver) { return CarveNgramDrafts(shape, carver); });
//   DrawNgramDrafts(random, shape, memory.args());
//   NgramDraftsOnHost(memory.args());
//
// The steps contain rows of one token, chunks of prompts, rows with given and with proposed drafts,
// and padded rows, over slots in any order.
//
// Thread safety: pure functions of their arguments.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_

#include <ostream>
#include <random>

#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/speculation/ngram_drafts_args.h"

namespace reprise {

struct SpeculationShape {
  int num_rows = 6;
  int num_slots = 8;    // at least num_rows
  int max_drafts = 4;   // 1 to kMaxDrafts
  int vocab_size = 20;  // small vocabularies cause repetitions
  int max_positions = 32;
  int history_offset = 0;  // elements before the first history; 1 misaligns it
  int history_gap = 0;     // elements between histories
  int min_ngram = 1;
  int max_ngram = 4;

  int max_tokens() const { return num_rows * (1 + max_drafts); }
};

std::ostream& operator<<(std::ostream& out, const SpeculationShape& shape);

// Draws a few or some hundred rows, with short or long texts.
SpeculationShape DrawSpeculationShape(std::mt19937& random);

NgramDraftsArgs CarveNgramDrafts(const SpeculationShape& shape, ArrayCarver& carver);
void DrawNgramDrafts(std::mt19937& random, const SpeculationShape& shape, NgramDraftsArgs& args);

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_CASES_H_
