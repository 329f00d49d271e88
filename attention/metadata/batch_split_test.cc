#include "reprise/attention/metadata/batch_split.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<BatchSequence> WithQueryLens(const std::vector<int>& query_lens) {
  std::vector<BatchSequence> sequences;
  for (size_t i = 0; i < query_lens.size(); ++i) {
    sequences.push_back({.table_row = static_cast<int>(i),
                         .num_computed = 100 * static_cast<int>(i),
                         .query_len = query_lens[i]});
  }
  return sequences;
}

struct Split {
  BatchSplit split;
  std::vector<int32_t> order;
};

Split SplitOf(const std::vector<int>& query_lens, const SplitOptions& options = {}) {
  Split result;
  result.order.resize(query_lens.size());
  const absl::StatusOr<BatchSplit> split =
      SplitBatch(WithQueryLens(query_lens), options, absl::MakeSpan(result.order));
  EXPECT_TRUE(split.ok()) << split.status();
  if (split.ok()) result.split = *split;
  return result;
}

TEST(BatchSplitTest, DecodesComeFirstAndEmptyRowsLast) {
  const Split result = SplitOf({7, 1, 0, 1, 9});
  EXPECT_THAT(result.order, ElementsAre(1, 3, 0, 4, 2));
  EXPECT_EQ(result.split.decode,
            (BatchKind{
                .num_rows = 2, .num_tokens = 2, .max_query_len = 1, .max_seq_len = 301}));  // row 3
  EXPECT_EQ(result.split.prefill, (BatchKind{.first_row = 2,
                                             .num_rows = 2,
                                             .num_tokens = 16,
                                             .max_query_len = 9,
                                             .max_seq_len = 409}));
  EXPECT_EQ(result.split.num_empty_rows, 1);
}

TEST(BatchSplitTest, PrefillsComeFirstOnRequest) {
  const Split result = SplitOf({7, 1, 0, 1, 9}, {.order = SplitOrder::kPrefillFirst});
  EXPECT_THAT(result.order, ElementsAre(0, 4, 1, 3, 2));
  EXPECT_EQ(result.split.prefill.first_row, 0);
  EXPECT_EQ(result.split.decode.first_row, 2);
}

TEST(BatchSplitTest, VerifiedDraftsAreDecodesUpToTheThreshold) {
  const Split result = SplitOf({4, 5, 1, 3}, {.decode_threshold = 4});
  EXPECT_THAT(result.order, ElementsAre(0, 2, 3, 1));
  EXPECT_EQ(result.split.decode.max_query_len, 4);
  EXPECT_EQ(result.split.decode.num_tokens, 8);
}

TEST(BatchSplitTest, UniformDecodesHaveExactlyTheThreshold) {
  const Split result =
      SplitOf({4, 5, 1, 4}, {.decode_threshold = 4, .decode_lengths = DecodeLengths::kUniform});
  EXPECT_THAT(result.order, ElementsAre(0, 3, 1, 2));
  EXPECT_EQ(result.split.decode.num_tokens, 8);
}

TEST(BatchSplitTest, AbsentKindHasZeroCounts) {
  EXPECT_EQ(SplitOf({1, 1}).split.prefill, (BatchKind{.first_row = 2}));
  EXPECT_EQ(SplitOf({8}).split.decode, BatchKind{});
}

TEST(BatchSplitTest, AcceptsAnEmptyBatch) {
  const Split result = SplitOf({});
  EXPECT_THAT(result.order, IsEmpty());
  EXPECT_EQ(result.split.decode, BatchKind{});
  EXPECT_EQ(result.split.prefill, BatchKind{});
  EXPECT_EQ(result.split.num_empty_rows, 0);
}

TEST(BatchSplitTest, RejectsInvalidLengthsWithoutChangingTheOrder) {
  std::vector<int32_t> order = {-5, -5};
  const auto refusal = [&](const std::vector<BatchSequence>& sequences,
                           const SplitOptions& options = {}) {
    const absl::Status status = SplitBatch(sequences, options, absl::MakeSpan(order)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(order, ElementsAre(-5, -5));
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{}, {.query_len = -1}}), HasSubstr("sequences[1]"));
  EXPECT_THAT(refusal({{.num_computed = -3}, {}}), HasSubstr("got num_computed -3"));
  constexpr int kMax = std::numeric_limits<int>::max();
  EXPECT_THAT(refusal({{.num_computed = kMax, .query_len = 1}, {}}), HasSubstr("sequences[0]"));
  EXPECT_THAT(refusal({{.query_len = kMax}, {.query_len = kMax}}), HasSubstr("new tokens"));
  EXPECT_THAT(refusal({{}, {}}, {.decode_threshold = 0}), HasSubstr("decode_threshold"));
  EXPECT_EQ(refusal({{}}), "order: expected [1], got [2]");
}

TEST(BatchSplitTest, SplitIsAStablePermutationWithCorrectCounts) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<int> query_lens(random.Int(0, 20));
    for (int& length : query_lens) length = random.Pick({0, 1, 1, random.Int(0, 9)});
    const SplitOptions options = {
        .decode_threshold = random.Int(1, 4),
        .decode_lengths = random.Pick({DecodeLengths::kUniform, DecodeLengths::kUpToThreshold}),
        .order = random.Pick({SplitOrder::kDecodeFirst, SplitOrder::kPrefillFirst})};
    const std::vector<BatchSequence> sequences = WithQueryLens(query_lens);
    std::vector<int32_t> order(sequences.size());
    const AllocationCounter allocations;
    const absl::StatusOr<BatchSplit> split = SplitBatch(sequences, options, absl::MakeSpan(order));
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(split.ok());

    // The expected order: one kind after the other.
    std::vector<int32_t> decodes, prefills, empty;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int length = query_lens[i];
      const bool uniform = options.decode_lengths == DecodeLengths::kUniform;
      const bool decode =
          length == options.decode_threshold || (!uniform && length <= options.decode_threshold);
      (length == 0 ? empty : decode ? decodes : prefills).push_back(static_cast<int32_t>(i));
    }
    std::vector<int32_t> expected;
    const bool decode_first = options.order == SplitOrder::kDecodeFirst;
    for (const auto& kind :
         {decode_first ? decodes : prefills, decode_first ? prefills : decodes, empty}) {
      expected.insert(expected.end(), kind.begin(), kind.end());
    }
    ASSERT_EQ(order, expected);
    ASSERT_EQ(split->decode.num_rows, static_cast<int>(decodes.size()));
    ASSERT_EQ(split->prefill.num_rows, static_cast<int>(prefills.size()));
    for (const BatchKind& kind : {split->decode, split->prefill}) {
      int num_tokens = 0;
      int longest = 0;
      for (int row = kind.first_row; row < kind.first_row + kind.num_rows; ++row) {
        num_tokens += query_lens[order[row]];
        longest = std::max(longest, query_lens[order[row]]);
      }
      ASSERT_EQ(kind.num_tokens, num_tokens);
      ASSERT_EQ(kind.max_query_len, longest);
    }
  }
}

}  // namespace
}  // namespace reprise
