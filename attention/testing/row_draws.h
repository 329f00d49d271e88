// Random rows for the generators of batches: lengths, positions, and garbage for what is not read.

#ifndef REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_
#define REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/visibility.h"

namespace reprise {

// Negative, huge, or both: no valid row, length, position or block.
int32_t Garbage(Random& random);

struct RowLengths {
  std::vector<int> query_lens;
  std::vector<int> seq_lens;  // 0 in the padded rows at the end, and in others
};

RowLengths DrawRowLengths(const FixtureOptions& options, const FeatureSet& features, int block_size,
                          Random& random);

// {0, lengths[0], lengths[0] + lengths[1], ...}.
std::vector<int32_t> PrefixSums(const std::vector<int>& lengths);

// 0 if the list is empty.
// Packed masks of rows of these lengths, as PagedBatch has them: in any order, with garbage between
// them. Some rows have none; rows without keys have absurd offsets.
struct CustomMasks {
  std::vector<uint8_t> bytes;    // not empty
  std::vector<int64_t> offsets;  // one a row
};
CustomMasks DrawCustomMasks(const RowLengths& rows, Random& random);

int MaxOf(const std::vector<int>& values);

// Positions of a row's queries: the default ones, shifted, or any.
std::vector<int32_t> DrawQueryPositions(const BatchRow& row, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_
