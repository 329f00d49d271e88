#include "attention/metadata/ragged_builder.h"

#include <numeric>
#include <string>
#include <vector>

#include "attention/testing/random.h"
#include "attention/testing/visible_set.h"
#include "base/testing/allocation_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Memory {
  Memory(int max_rows, int max_tokens)
      : query_start_loc(max_rows + 1, -77),
        key_start_loc(max_rows + 1, -77),
        positions(max_tokens, -77),
        slot_mapping(max_tokens, -77) {}

  RaggedBuffers buffers() {
    return {.query_start_loc = absl::MakeSpan(query_start_loc),
            .key_start_loc = absl::MakeSpan(key_start_loc),
            .positions = absl::MakeSpan(positions),
            .slot_mapping = absl::MakeSpan(slot_mapping)};
  }

  std::vector<int32_t> query_start_loc, key_start_loc, positions;
  std::vector<int64_t> slot_mapping;
};

TEST(RaggedBuilderTest, EncoderInputsSeeThemselvesInBothDirections) {
  const std::vector<int32_t> lens = {3, 0, 2};
  Memory memory(4, 7);
  const absl::StatusOr<BuiltRaggedBatch> built = BuildRaggedBatch(
      {.lens = lens, .kind = RaggedKind::kEncoder, .padded = PaddedSize{4, 7}}, memory.buffers());
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_FALSE(built->batch.causal);
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 3, 3, 5, 5));
  EXPECT_THAT(memory.key_start_loc, ElementsAre(0, 3, 3, 5, 5));
  EXPECT_THAT(built->positions, ElementsAre(0, 1, 2, 0, 1, 0, 0));
  EXPECT_THAT(built->slot_mapping, Each(-1));
  EXPECT_EQ(built->batch.max_query_len, 3);
  EXPECT_EQ(built->batch.num_keys, 7);
  EXPECT_EQ(built->num_live_tokens, 5);
  EXPECT_EQ(VisibleSet(PlainLayer(), built->batch).size(), 3 * 3 + 2 * 2);
}

TEST(RaggedBuilderTest, AProfileRunOfZerosSeesNothing) {
  const std::vector<int32_t> lens = {3, 2};
  Memory memory(2, 5);
  const absl::StatusOr<BuiltRaggedBatch> built =
      BuildRaggedBatch({.lens = lens, .kind = RaggedKind::kProfileZeros}, memory.buffers());
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 3, 5));
  EXPECT_THAT(memory.key_start_loc, Each(0));
  EXPECT_EQ(built->batch.max_seq_len, 0);
  EXPECT_TRUE(VisibleSet(PlainLayer(), built->batch).empty());
}

TEST(RaggedBuilderTest, ProfileLengthsAreAlikeButForOneToken) {
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

TEST(RaggedBuilderTest, BadRequestsAreRefusedWithNamesAndValues) {
  Memory memory(2, 4);
  const auto refusal = [&](const std::vector<int32_t>& lens,
                           std::optional<PaddedSize> padded = {}) {
    const absl::Status status =
        BuildRaggedBatch({.lens = lens, .padded = padded}, memory.buffers()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({1, -2}), "lens[1]: expected at least 0, got -2");
  EXPECT_EQ(refusal({INT32_MAX, 1}),
            "lens: expected a total of at most 2147483647, got 2147483648");
  EXPECT_EQ(refusal({1, 1, 1}), "query_start_loc: expected at least 4, got 3");
  EXPECT_EQ(refusal({3, 2}), "positions: expected at least 5, got 4");
  EXPECT_EQ(refusal({3, 1}, PaddedSize{1, 4}), "padded.num_rows: expected at least 2, got 1");
  EXPECT_EQ(refusal({3, 1}, PaddedSize{2, 3}), "padded.num_tokens: expected at least 4, got 3");
}

TEST(RaggedBuilderTest, TokensSeeWhatTheDefinitionSays) {
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
    const PaddedSize padded = {.num_rows = static_cast<int>(lens.size()) + random.Int(0, 2),
                               .num_tokens = num_tokens + random.Int(0, 5)};
    Memory memory(padded.num_rows, padded.num_tokens);
    const RaggedBuffers buffers = memory.buffers();
    const AllocationCounter allocations;
    const absl::StatusOr<BuiltRaggedBatch> built =
        BuildRaggedBatch({.lens = lens, .kind = kind, .padded = padded}, buffers);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(built.ok()) << built.status();

    VisiblePairs expected;
    int first = 0;
    for (int32_t length : lens) {
      for (int p = 0; p < length; ++p) {
        ASSERT_EQ(built->positions[first + p], p);
        for (int key = 0; key < length && kind != RaggedKind::kProfileZeros; ++key) {
          if (kind == RaggedKind::kProfile && key > p) continue;
          if (layer.window_left && key < p - *layer.window_left) continue;
          if (layer.window_right && key > p + *layer.window_right) continue;
          expected.push_back({first + p, p, key, first + key});
        }
      }
      first += length;
    }
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, built->batch), expected), "");
  }
}

}  // namespace
}  // namespace reprise
