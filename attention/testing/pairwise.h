// Covering arrays: few rows of choices in which every pair of choices of every two fields occurs.
//
//   Random random(seed);
//   // Three fields of 2, 3 and 4 choices: 12 rows or a few more, not 24.
//   for (const std::vector<int>& row : PairwiseRows({2, 3, 4}, random)) ...
//
// Most defects of combinations show with two fields alone (Kuhn et al. 2004). Greedy, as in AETG
// (Cohen et al. 1997).
//
// Thread safety: none shared. Cost: some milliseconds for 40 fields.

#ifndef ATTENTION_TESTING_PAIRWISE_H_
#define ATTENTION_TESTING_PAIRWISE_H_

#include <vector>

#include "attention/testing/random.h"

namespace reprise {

// Rows of a choice, 0 to num_choices[field] - 1, for each field. REQUIRES: two fields or more, of a
// choice or more each.
std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& num_choices, Random& random);

}  // namespace reprise

#endif  // ATTENTION_TESTING_PAIRWISE_H_
