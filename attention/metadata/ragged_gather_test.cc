#include "reprise/attention/metadata/ragged_gather.h"

#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Lengths, and outputs that are filled with invalid values.
struct Memory {
  Memory(std::vector<int32_t> row_lens, int num_tokens)
      : lens(std::move(row_lens)),
        query_start_loc(lens.size() + 1, -77),
        key_start_loc(lens.size() + 1, -77),
        positions(num_tokens, -77),
        row_faults(lens.size(), -77),
        slot_mapping(num_tokens, -77) {}

  RaggedGatherArgs Args(RaggedKind kind, int max_len) {
    return {.lens = lens.data(),
            .kind = kind,
            .num_rows = static_cast<int>(lens.size()),
            .num_tokens = static_cast<int>(positions.size()),
            .max_len = max_len,
            .query_start_loc = query_start_loc.data(),
            .key_start_loc = key_start_loc.data(),
            .positions = positions.data(),
            .slot_mapping = slot_mapping.data(),
            .row_faults = row_faults.data(),
            .num_faults = &num_faults};
  }

  std::vector<int32_t> lens, query_start_loc, key_start_loc, positions, row_faults;
  std::vector<int64_t> slot_mapping;
  int32_t num_faults = -77;
};

TEST(RaggedGatherTest, EncoderInputsAttendInBothDirections) {
  Memory memory({3, 0, 2, 0}, 7);
  const absl::StatusOr<RaggedBatch> batch = BuildRaggedGather(memory.Args(RaggedKind::kEncoder, 3));
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_FALSE(batch->causal);
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 3, 3, 5, 5));
  EXPECT_THAT(memory.key_start_loc, ElementsAre(0, 3, 3, 5, 5));
  EXPECT_THAT(memory.positions, ElementsAre(0, 1, 2, 0, 1, 0, 0));
  EXPECT_THAT(memory.slot_mapping, Each(-1));
  EXPECT_THAT(memory.row_faults, Each(0));
  EXPECT_EQ(memory.num_faults, 0);
  EXPECT_EQ(batch->max_query_len, 3);
  EXPECT_EQ(batch->num_keys, 7);
  EXPECT_EQ(VisibleSet(PlainLayer(), *batch).size(), 3 * 3 + 2 * 2);
}

TEST(RaggedGatherTest, ProfileRunOfZerosHasNoVisibleKeys) {
  Memory memory({3, 2}, 5);
  RaggedGatherArgs args = memory.Args(RaggedKind::kProfileZeros, 3);
  args.slot_mapping = nullptr;  // optional, as are the next two
  args.row_faults = nullptr;
  args.num_faults = nullptr;
  const absl::StatusOr<RaggedBatch> batch = BuildRaggedGather(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 3, 5));
  EXPECT_THAT(memory.key_start_loc, Each(0));
  EXPECT_EQ(batch->max_seq_len, 0);
  EXPECT_TRUE(VisibleSet(PlainLayer(), *batch).empty());
}

TEST(RaggedGatherTest, ProfileLengthsDifferByAtMostOneToken) {
  std::vector<int32_t> lens(3);
  ASSERT_TRUE(FillProfileLens(11, absl::MakeSpan(lens)).ok());
  EXPECT_THAT(lens, ElementsAre(4, 4, 3));
  ASSERT_TRUE(FillProfileLens(2, absl::MakeSpan(lens)).ok());
  EXPECT_THAT(lens, ElementsAre(1, 1, 0));
  EXPECT_TRUE(FillProfileLens(0, {}).ok());
  EXPECT_EQ(FillProfileLens(5, {}).message(),
            "lens: expected at least 1 sequence for 5 tokens, got 0");
  EXPECT_FALSE(FillProfileLens(-1, absl::MakeSpan(lens)).ok());
}

TEST(RaggedGatherTest, InvalidRowsAreEmptyAndHaveAFault) {
  // Rows: valid; negative; above max_len; valid; no room; no room after the previous row; empty.
  Memory memory({4, -1, 7, 5, 2, 1, 0}, 10);
  const RaggedGatherArgs args = memory.Args(RaggedKind::kEncoder, 6);
  RaggedGatherOnHost(args);
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 4, 4, 4, 9, 9, 9, 9));
  EXPECT_THAT(memory.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 0));
  constexpr auto kLength = static_cast<int>(RowFault::kLength);
  constexpr auto kNoRoom = static_cast<int>(RowFault::kNoRoom);
  EXPECT_THAT(memory.row_faults, ElementsAre(0, kLength, kLength, 0, kNoRoom, kNoRoom, 0));
  EXPECT_EQ(memory.num_faults, 4);
  EXPECT_EQ(BuildRaggedGather(args).status().message(),
            "rows[1]: a length or a count is negative or too large: len -1, max_len 6, num_tokens "
            "10");
  memory.lens = {4, 5, 2, INT32_MAX, 0, 0, 0};
  EXPECT_EQ(BuildRaggedGather(args).status().message(),
            "rows[2]: its tokens pass the capacity of the result: len 2, max_len 6, num_tokens 10");
}

TEST(RaggedGatherTest, VisibleKeysMatchTheDefinition) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    std::vector<int32_t> lens(random.Int(0, 6));
    for (int32_t& length : lens) {
      length = random.Pick({0, 1, random.Int(0, 20), random.Int(0, 60)});
    }
    const auto kind =
        random.Pick({RaggedKind::kEncoder, RaggedKind::kProfile, RaggedKind::kProfileZeros});
    AttentionParams layer = PlainLayer();
    if (random.OneIn(3)) layer.window_left = random.Int(0, 20);
    if (random.OneIn(3)) layer.window_right = random.Int(0, 20);
    const int num_tokens = std::accumulate(lens.begin(), lens.end(), 0);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", kind " << static_cast<int>(kind)
                                    << ", lens " << testing::PrintToString(lens));
    std::vector<int32_t> padded = lens;
    padded.resize(lens.size() + random.Int(0, 2));
    Memory memory(padded, num_tokens + random.Int(0, 5));
    const RaggedGatherArgs args = memory.Args(kind, 60);
    const AllocationCounter allocations;
    const absl::StatusOr<RaggedBatch> batch = BuildRaggedGather(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << batch.status();

    VisiblePairs expected;
    int first = 0;
    for (int32_t length : lens) {
      for (int p = 0; p < length; ++p) {
        ASSERT_EQ(memory.positions[first + p], p);
        for (int key = 0; key < length && kind != RaggedKind::kProfileZeros; ++key) {
          if (kind == RaggedKind::kProfile && key > p) continue;
          if (layer.window_left && key < p - *layer.window_left) continue;
          if (layer.window_right && key > p + *layer.window_right) continue;
          expected.push_back({first + p, p, key, first + key});
        }
      }
      first += length;
    }
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, *batch), expected), "");
  }
}

}  // namespace
}  // namespace reprise
