// Covering arrays: few rows of choices in which every pair of choices of every two fields occurs.
//
//   Random random(seed);
//   // Three fields of 2, 3 and 4 choices: 12 rows or a few more, not 24.
//   for (const std::vector<int>& row : PairwiseRows({2, 3, 4}, random)) ...
//
// Two fields suffice to show most defects of combinations (Kuhn et al. 2004). Greedy, as in AETG
// (Cohen et al. 1997).
//
// Thread safety: no shared state. Cost: a few milliseconds for 40 fields.

#ifndef REPRISE_ATTENTION_TESTING_PAIRWISE_H_
#define REPRISE_ATTENTION_TESTING_PAIRWISE_H_

#include <vector>

#include "reprise/attention/testing/random.h"

namespace reprise {

// Each row has one choice, 0 to num_choices[field] - 1, per field. REQUIRES: at least two fields,
// with at least one choice each.
std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& num_choices, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_PAIRWISE_H_
