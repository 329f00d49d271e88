// Covering arrays: few rows of choices that cover every pair of choices of any two fields.
//
//   Random random(seed);
//   // Three fields with 2, 3 and 4 choices: at least 12 rows, instead of 24.
//   for (const std::vector<int>& row : PairwiseRows({2, 3, 4}, random)) ...
//
// Pairs of fields reveal most defects of combinations (Kuhn et al. 2004). Greedy, like AETG (Cohen
// et al. 1997).
//
// Thread safety: thread-safe; no shared state. Cost: a few milliseconds for 40 fields.

#ifndef REPRISE_ATTENTION_TESTING_PAIRWISE_H_
#define REPRISE_ATTENTION_TESTING_PAIRWISE_H_

#include <vector>

#include "reprise/attention/testing/random.h"

namespace reprise {

// Returns rows with one choice per field, 0 to num_choices[field] - 1. REQUIRES: at least two
// fields, with at least one choice each.
std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& num_choices, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_PAIRWISE_H_
