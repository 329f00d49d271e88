// The keys that each query of a batch sees, from its arrays and its block table: the check of every
// builder of batches.
//
//   absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(batch, 4, buffers);
//   EXPECT_EQ(VisibleSet(layer, *local, block_size),
//             SetByDefinition(schedule, [](int64_t p, int64_t key) {
//               return key <= p && key / 4 == p / 4;
//             }));
//
// Sets are sorted vectors. A key that a query sees twice is in the set twice, so it fails a
// comparison.
//
// Pure functions of host data. Simple rather than fast.

#ifndef REPRISE_ATTENTION_TESTING_VISIBLE_SET_H_
#define REPRISE_ATTENTION_TESTING_VISIBLE_SET_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"

namespace reprise {

// A token of the batch, at query_position, sees the key in `slot` of the cache (block * block_size
// + offset; in a ragged batch the row of k), at key_position.
struct VisiblePair {
  int token = 0;
  int64_t query_position = 0;
  int64_t key_position = 0;
  int64_t slot = 0;

  friend auto operator<=>(const VisiblePair&, const VisiblePair&) = default;
};

std::ostream& operator<<(std::ostream& out, const VisiblePair& pair);

using VisiblePairs = std::vector<VisiblePair>;

// For q head 0. Reads only what the contract of PagedBatch allows to be read. REQUIRES: host
// pointers; rows within the table.
VisiblePairs VisibleSet(const AttentionParams& layer, const PagedBatch& batch, int block_size);
VisiblePairs VisibleSet(const AttentionParams& layer, const RaggedBatch& batch);

// A layer of one head without a window: visibility follows from the batch alone.
AttentionParams PlainLayer();

// Empty if they are equal, else the first difference in words: a failure that prints 10,000 pairs
// is unreadable.
std::string DifferenceOf(const VisiblePairs& got, const VisiblePairs& expected);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_VISIBLE_SET_H_
