// Computes the keys that each query of a batch sees, from the batch's arrays and block table.
// Used to check batch builders.
//
//   absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(batch, 4, buffers);
//   EXPECT_EQ(VisibleSet(layer, *local, block_size),
//             SetByDefinition(schedule, [](int64_t p, int64_t key) {
//               return key <= p && key / 4 == p / 4;
//             }));
//
// Sets are sorted vectors. A key that a query sees twice occurs twice, so a comparison fails.
//
// Thread safety: pure functions of host data. Simple rather than fast.

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

// A token of the batch, at query_position, sees the key in `slot` of the cache (block *
// block_size + offset; in a ragged batch the row of k), at key_position.
struct VisiblePair {
  int token = 0;
  int64_t query_position = 0;
  int64_t key_position = 0;
  int64_t slot = 0;

  friend auto operator<=>(const VisiblePair&, const VisiblePair&) = default;
};

std::ostream& operator<<(std::ostream& out, const VisiblePair& pair);

using VisiblePairs = std::vector<VisiblePair>;

// Returns the pairs for q head 0. Reads only data that the contract of PagedBatch allows to be
// read.
// REQUIRES: host pointers; rows within the table.
VisiblePairs VisibleSet(const AttentionParams& layer, const PagedBatch& batch, int block_size);
VisiblePairs VisibleSet(const AttentionParams& layer, const RaggedBatch& batch);

// Returns a layer with one head and no window: visibility depends only on the batch.
AttentionParams PlainLayer();

// Returns an empty string if both are equal. Otherwise describes only the first difference, because
// 10,000 printed pairs would be unreadable.
std::string DifferenceOf(const VisiblePairs& got, const VisiblePairs& expected);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_VISIBLE_SET_H_
