#include "reprise/engine/placeholder_map.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_split.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

TEST(PlaceholderMapTest, ChunkCopiesItsPartOfARange) {
  // Tokens 4 .. 9 of sequence 1 are rows 0 .. 5. The step computes its tokens 6 .. 13.
  const std::vector<BatchSequence> sequences = {{0, 17, 1}, {1, 6, 8}};
  const std::vector<PlaceholderRange> ranges = {{.sequence = 1, .first_position = 4, .length = 6}};
  std::vector<PlaceholderCopy> copies(1);
  EXPECT_EQ(*MapPlaceholders(sequences, {}, ranges, absl::MakeSpan(copies)), 1);
  EXPECT_THAT(copies,
              ElementsAre(PlaceholderCopy{.first_token = 1, .first_source = 2, .length = 4}));
  // With the prefill first, the same copy goes to other tokens.
  const std::vector<int32_t> order = {1, 0};
  EXPECT_EQ(*MapPlaceholders(sequences, order, ranges, absl::MakeSpan(copies)), 1);
  EXPECT_THAT(copies,
              ElementsAre(PlaceholderCopy{.first_token = 0, .first_source = 2, .length = 4}));
}

TEST(PlaceholderMapTest, RangesOutsideTheStepHaveNoCopies) {
  const std::vector<BatchSequence> sequences = {{0, 6, 8}};
  const std::vector<PlaceholderRange> ranges = {{.first_position = 0, .length = 6},
                                                {.first_position = 10, .length = 0},
                                                {.first_position = 14, .length = 9}};
  EXPECT_EQ(*MapPlaceholders(sequences, {}, ranges, {}), 0);
}

TEST(PlaceholderMapTest, RejectsInvalidRanges) {
  const std::vector<BatchSequence> sequences = {{0, 0, 8}, {1, 0, 8}};
  const auto refusal = [&](const std::vector<PlaceholderRange>& ranges,
                           const std::vector<int32_t>& order = {}) {
    std::vector<PlaceholderCopy> copies(1);
    const absl::Status status =
        MapPlaceholders(sequences, order, ranges, absl::MakeSpan(copies)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({{.sequence = 2}}), "ranges[0].sequence: expected 0 to 1, got 2");
  EXPECT_EQ(refusal({{0, -1, 2, 3}}),
            "ranges[0]: expected first_position, length and first_source of at least 0, got -1, 2, "
            "3");
  EXPECT_EQ(
      refusal({{0, 2, 4, 0}, {0, 5, 1, 4}}),
      "ranges[1] must not precede the end of the previous range: expected at least position 6 "
      "of sequence 0, got position 5 of sequence 0");
  EXPECT_EQ(refusal({{0, 2, 4, 0}, {1, 5, 1, 4}}),
            "copies must have room for the copies of the step: expected more, got 1");
  EXPECT_EQ(refusal({}, {5}), "order[0]: expected 0 to 1, got 5");
}

// Checks the definition: each placeholder token of the batch gets its row, and no other token does.
TEST(PlaceholderMapTest, MatchesTheDefinitionForAnyOrderOfSequences) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<BatchSequence> sequences(random.Int(0, 6));
    std::vector<PlaceholderRange> ranges;
    for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
      sequences[s] = {s, random.Int(0, 30), random.Pick({0, 1, random.Int(1, 20)})};
      int position = random.Int(0, 8);
      for (int n = random.Int(0, 3); n > 0; --n) {
        ranges.push_back({s, position, random.Int(0, 12), random.Int(0, 100)});
        position += ranges.back().length + random.Int(0, 5);
      }
    }
    std::vector<int32_t> order(sequences.size());
    ASSERT_TRUE(
        SplitBatch(sequences,
                   {.order = random.Pick({SplitOrder::kDecodeFirst, SplitOrder::kPrefillFirst})},
                   absl::MakeSpan(order))
            .ok());
    std::map<int, int> expected;  // token -> row
    int token = 0;
    for (int32_t s : order) {
      for (int i = 0; i < sequences[s].query_len; ++i, ++token) {
        const int position = sequences[s].num_computed + i;
        for (const PlaceholderRange& range : ranges) {
          const int in_range = position - range.first_position;
          if (range.sequence == s && in_range >= 0 && in_range < range.length) {
            expected[token] = range.first_source + in_range;
          }
        }
      }
    }
    std::vector<PlaceholderCopy> copies(ranges.size());
    const AllocationCounter allocations;
    const absl::StatusOr<int> count =
        MapPlaceholders(sequences, order, ranges, absl::MakeSpan(copies));
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(count.ok()) << count.status();
    std::map<int, int> got;
    for (int c = 0; c < *count; ++c) {
      ASSERT_GT(copies[c].length, 0);
      for (int i = 0; i < copies[c].length; ++i) {
        ASSERT_TRUE(got.emplace(copies[c].first_token + i, copies[c].first_source + i).second);
      }
    }
    ASSERT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace reprise
