// Random rows for the batch generators: lengths, positions, and garbage for elements that are not
// read.

#ifndef REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_
#define REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/testing/fixture_options.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/visibility.h"

namespace reprise {

// Returns a negative or huge number that is no valid row, length, position or block.
int32_t Garbage(Random& random);

struct RowLengths {
  std::vector<int> query_lens;
  std::vector<int> seq_lens;  // 0 in padded rows at the end, and in some other rows
};

RowLengths DrawRowLengths(const FixtureOptions& options, const FeatureSet& features, int block_size,
                          Random& random);

// Returns {0, lengths[0], lengths[0] + lengths[1], ...}.
std::vector<int32_t> PrefixSums(const std::vector<int>& lengths);

// Packed masks for rows of these lengths, in PagedBatch's format, in any order, with garbage
// between them. Some rows have no mask (offset -1). Rows without keys have garbage offsets.
struct CustomMasks {
  std::vector<uint8_t> bytes;    // not empty
  std::vector<int64_t> offsets;  // one per row
};
CustomMasks DrawCustomMasks(const RowLengths& rows, Random& random);

// Returns the largest value, or 0 if the list is empty.
int MaxOf(const std::vector<int>& values);

// Draws the positions of a row's queries: default, shifted, or any.
std::vector<int32_t> DrawQueryPositions(const BatchRow& row, Random& random);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_ROW_DRAWS_H_
