#include "reprise/attention/metadata/batch_builder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_split.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/attention/visibility.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/group_retention.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const int32_t> Ints(const int32_t* data, int count) { return {data, size_t(count)}; }

BatchBuilder BuilderOf(int max_rows, int max_tokens) {
  return *BatchBuilder::Create({.max_rows = max_rows, .max_tokens = max_tokens});
}

// Two tables, {7, 2, 9} and {5, 0, -1}, with block_size 4.
constexpr int32_t kEntries[] = {7, 2, 9, 5, 0, -1};
constexpr BlockTableView kTable = {
    .entries = kEntries, .row_stride = 3, .num_tables = 2, .max_blocks = 3, .block_size = 4};

TEST(BatchBuilderTest, ADecodeAndAPrefillChunkShareABatch) {
  BatchBuilder builder = BuilderOf(4, 8);
  const std::vector<BatchSequence> sequences = {
      {.table_row = 1, .num_computed = 3, .query_len = 1},
      {.table_row = 0, .num_computed = 2, .query_len = 4}};
  const absl::StatusOr<BuiltBatch> built = builder.Build({.sequences = sequences, .table = kTable});
  ASSERT_TRUE(built.ok()) << built.status();
  const PagedBatch& batch = built->batch;
  EXPECT_EQ(batch.num_rows, 2);
  EXPECT_EQ(batch.num_tokens, 5);
  EXPECT_EQ(batch.max_query_len, 4);
  EXPECT_EQ(batch.max_seq_len, 6);
  EXPECT_TRUE(batch.causal);
  EXPECT_EQ(batch.block_table, kEntries);  // not a copy
  EXPECT_THAT(Ints(batch.query_start_loc, 3), ElementsAre(0, 1, 5));
  EXPECT_THAT(Ints(batch.seq_lens, 2), ElementsAre(4, 6));
  EXPECT_THAT(Ints(batch.table_row, 2), ElementsAre(1, 0));
  EXPECT_THAT(built->positions, ElementsAre(3, 2, 3, 4, 5));
  // Row 0: block 5, offset 3. Row 1: block 7, offsets 2 and 3; block 2, offsets 0 and 1.
  EXPECT_THAT(built->slot_mapping, ElementsAre(23, 30, 31, 8, 9));
}

TEST(BatchBuilderTest, PaddedRowsAndTokensAreInertInReusedBuffers) {
  BatchBuilder builder = BuilderOf(4, 8);
  const std::vector<BatchSequence> full = {{0, 0, 2}, {0, 2, 2}, {0, 4, 2}, {0, 6, 2}};
  ASSERT_TRUE(builder.Build({.sequences = full, .table = kTable}).ok());
  const std::vector<BatchSequence> one = {{1, 1, 1}};
  const absl::StatusOr<BuiltBatch> built = builder.Build(
      {.sequences = one, .table = kTable, .padded = PaddedSize{.num_rows = 4, .num_tokens = 6}});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_EQ(built->num_live_rows, 1);
  EXPECT_EQ(built->num_live_tokens, 1);
  EXPECT_EQ(built->batch.num_rows, 4);
  EXPECT_EQ(built->batch.num_tokens, 6);
  EXPECT_THAT(Ints(built->batch.query_start_loc, 5), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(Ints(built->batch.seq_lens, 4), ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(Ints(built->batch.table_row, 4), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(built->positions, ElementsAre(1, 0, 0, 0, 0, 0));
  EXPECT_THAT(built->slot_mapping, ElementsAre(21, -1, -1, -1, -1, -1));
}

TEST(BatchBuilderTest, SequenceWithoutNewTokensBecomesAnEmptyRow) {
  BatchBuilder builder = BuilderOf(2, 2);
  const std::vector<BatchSequence> sequences = {{-99, 7, 0}, {0, 0, 1}};
  const absl::StatusOr<BuiltBatch> built = builder.Build({.sequences = sequences, .table = kTable});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(Ints(built->batch.query_start_loc, 3), ElementsAre(0, 0, 1));
  EXPECT_THAT(Ints(built->batch.seq_lens, 2), ElementsAre(0, 1));
}

TEST(BatchBuilderTest, ATokenInTheNullBlockIsNotWritten) {
  BatchBuilder builder = BuilderOf(1, 8);
  const std::vector<BatchSequence> sequences = {{1, 2, 4}};  // 2 tokens in block 5, 2 in block 0
  const absl::StatusOr<BuiltBatch> built = builder.Build({.sequences = sequences, .table = kTable});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(built->slot_mapping, ElementsAre(22, 23, -1, -1));
}

TEST(BatchBuilderTest, TokensOlderThanTheWriteWindowAreNotWritten) {
  BatchBuilder builder = BuilderOf(2, 8);
  const std::vector<BatchSequence> sequences = {{0, 2, 5}, {0, 0, 1}};
  const absl::StatusOr<BuiltBatch> built =
      builder.Build({.sequences = sequences, .table = kTable, .write_window = 2});
  ASSERT_TRUE(built.ok()) << built.status();
  // Written: positions 5 and 6 of the first sequence, and the only token of the second sequence.
  EXPECT_THAT(built->slot_mapping, ElementsAre(-1, -1, -1, 9, 10, 28));
  EXPECT_EQ(builder.Build({.sequences = sequences, .table = kTable, .write_window = 0})
                .status()
                .message(),
            "write_window: expected at least 1, got 0");
}

TEST(BatchBuilderTest, SequenceMayStartAtAKeyStartInTheTableRow) {
  absl::StatusOr<BatchBuilder> builder =
      BatchBuilder::Create({.max_rows = 3, .max_tokens = 4, .key_starts = KeyStarts::kGiven});
  const std::vector<BatchSequence> sequences = {
      {.table_row = 0, .num_computed = 1, .query_len = 2, .key_start = 5},
      {.table_row = 1, .num_computed = 0, .query_len = 1}};
  const absl::StatusOr<BuiltBatch> built =
      builder->Build({.sequences = sequences, .table = kTable, .padded = PaddedSize{3, 4}});
  ASSERT_TRUE(built.ok()) << built.status();
  EXPECT_THAT(Ints(built->batch.key_start, 3), ElementsAre(5, 0, 0));
  EXPECT_THAT(Ints(built->batch.seq_lens, 3), ElementsAre(3, 1, kPaddedSeqLen));
  EXPECT_THAT(built->positions, ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(built->slot_mapping, ElementsAre(10, 11, 20, -1));  // indices 6, 7: block 2

  BatchBuilder plain = BuilderOf(3, 4);
  EXPECT_EQ(plain.Build({.sequences = sequences, .table = kTable}).status().message(),
            "sequences[0].key_start: expected 0 without a buffer for key_start, got 5");
  const std::vector<BatchSequence> beyond = {
      {.table_row = 0, .num_computed = 5, .query_len = 3, .key_start = 5}};
  EXPECT_EQ(builder->Build({.sequences = beyond, .table = kTable}).status().message(),
            "sequences[0].key_start + num_computed + query_len: expected at most 12 (max_blocks * "
            "block_size), got 13");
  const std::vector<BatchSequence> negative = {
      {.table_row = 0, .num_computed = 0, .query_len = 1, .key_start = -1}};
  EXPECT_EQ(builder->Build({.sequences = negative, .table = kTable}).status().message(),
            "sequences[0].key_start: expected at least 0, got -1");
}

TEST(BatchBuilderTest, SequencesCopiedAsBytesBuildTheSameBatch) {
  const std::vector<BatchSequence> sequences = {{1, 3, 1}, {0, 2, 4}};
  std::vector<char> bytes(sequences.size() * sizeof(BatchSequence));
  std::memcpy(bytes.data(), sequences.data(), bytes.size());
  std::vector<BatchSequence> received(sequences.size());
  std::memcpy(received.data(), bytes.data(), bytes.size());
  BatchBuilder here = BuilderOf(2, 5);
  BatchBuilder there = BuilderOf(2, 5);
  const absl::StatusOr<BuiltBatch> one = here.Build({.sequences = sequences, .table = kTable});
  const absl::StatusOr<BuiltBatch> other = there.Build({.sequences = received, .table = kTable});
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->slot_mapping, other->slot_mapping);
  EXPECT_EQ(one->positions, other->positions);
}

TEST(BatchBuilderTest, EmptyBatchHasNoRowsAndMayBePadded) {
  BatchBuilder builder = BuilderOf(2, 2);
  const absl::StatusOr<BuiltBatch> idle = builder.Build({.table = kTable});
  ASSERT_TRUE(idle.ok()) << idle.status();
  EXPECT_EQ(idle->batch.num_rows, 0);
  EXPECT_EQ(idle->batch.query_start_loc[0], 0);
  EXPECT_EQ(idle->batch.max_query_len, 0);

  const absl::StatusOr<BuiltBatch> padded =
      builder.Build({.table = kTable, .padded = PaddedSize{2, 2}});
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_THAT(Ints(padded->batch.query_start_loc, 3), Each(0));
  EXPECT_THAT(padded->slot_mapping, Each(-1));
}

TEST(BatchBuilderTest, RejectsInvalidRequests) {
  BatchBuilder builder = BuilderOf(2, 4);
  const auto refusal = [&](const std::vector<BatchSequence>& sequences,
                           const BatchRequest& request = {.table = kTable}) {
    BatchRequest with = request;
    with.sequences = sequences;
    const absl::Status status = builder.Build(with).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({{0, 0, -1}}), "sequences[0].query_len: expected at least 0, got -1");
  EXPECT_EQ(refusal({{0, -1, 1}}), "sequences[0].num_computed: expected at least 0, got -1");
  EXPECT_EQ(refusal({{0, 0, 1}, {2, 0, 1}}), "sequences[1].table_row: expected 0 to 1, got 2");
  // The table has room for 12 positions: 3 blocks of 4 tokens.
  EXPECT_EQ(refusal({{0, 12, 1}}),
            "sequences[0].num_computed + query_len: expected at most 12 (max_blocks * block_size), "
            "got 13");
  EXPECT_THAT(refusal({{1, 8, 1}}), HasSubstr("sequences[0], table row 1"));  // entry -1
  EXPECT_EQ(refusal({{0, 0, 3}, {0, 3, 2}}),
            "num_tokens: expected at most 4, got 3 plus 2 of sequences[1]");
  EXPECT_EQ(refusal({{0, 0, 1}, {0, 1, 1}, {0, 2, 1}}),
            "query_start_loc: expected at least 4, got 3");
  EXPECT_EQ(refusal({{0, 0, 1}}, {.table = kTable, .padded = PaddedSize{0, 4}}),
            "padded.num_rows: expected at least 1, got 0");
  EXPECT_EQ(refusal({{0, 0, 3}}, {.table = kTable, .padded = PaddedSize{1, 2}}),
            "num_tokens: expected at most 2, got 0 plus 3 of sequences[0]");
  const std::vector<int32_t> order = {1};
  EXPECT_EQ(refusal({{0, 0, 1}}, {.order = order, .table = kTable}),
            "order[0]: expected 0 to 0, got 1");
  BlockTableView narrow = kTable;
  narrow.row_stride = 2;
  EXPECT_EQ(refusal({{0, 0, 1}}, {.table = narrow}),
            "table.row_stride: expected at least 3, got 2");
  EXPECT_FALSE(BatchBuilder::Create({.max_rows = -1}).ok());
}

// Random sequences. The table has shuffled blocks, then look-ahead blocks, then invalid entries.
struct Scheduled {
  std::vector<BatchSequence> sequences;
  std::vector<int32_t> entries;
  BlockTableView table;
};

Scheduled DrawScheduled(Random& random) {
  Scheduled drawn;
  const int block_size = random.Pick({1, 2, 3, 8, 16, 32});
  const int num_tables = random.Int(1, 12);
  const int max_blocks = random.Int(1, 20);
  const int64_t stride = max_blocks + random.Int(0, 3);
  drawn.entries.assign(num_tables * stride, -12345);
  std::vector<int32_t> free(num_tables * max_blocks);
  for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i) + 1;
  random.Shuffle(free);
  for (int row = 0; row < num_tables; ++row) {
    const int seq_len = random.Int(0, max_blocks * block_size);
    const int query_len = std::min(random.Pick({0, 1, 1, random.Int(0, 40)}), seq_len);
    drawn.sequences.push_back(
        {.table_row = row, .num_computed = seq_len - query_len, .query_len = query_len});
    const int look_ahead = random.Int(0, 2);
    const int num_blocks =
        std::min(max_blocks, (seq_len + block_size - 1) / block_size + look_ahead);
    for (int column = 0; column < num_blocks; ++column) {
      drawn.entries[row * stride + column] = free.back();
      free.pop_back();
    }
  }
  random.Shuffle(drawn.sequences);
  drawn.table = {.entries = drawn.entries.data(),
                 .row_stride = stride,
                 .num_tables = num_tables,
                 .max_blocks = max_blocks,
                 .block_size = block_size};
  return drawn;
}

// (table row of the query, position of the query, slot of the key, position of the key).
using Triple = std::tuple<int, int, int64_t, int64_t>;

int64_t SlotByDefinition(const BlockTableView& table, int row, int position) {
  const int32_t block = table.entries[row * table.row_stride + position / table.block_size];
  return int64_t{block} * table.block_size + position % table.block_size;
}

TEST(BatchBuilderTest, VisibleKeysMatchTheDefinition) {
  const AttentionParams layer = {
      .num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 1, .head_dim_v = 1};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Scheduled drawn = DrawScheduled(random);
    // Definition: token p of a sequence sees tokens 0 .. p of the same sequence.
    std::set<Triple> expected;
    std::map<std::pair<int, int>, int64_t> expected_slots;
    int num_tokens = 0;
    for (const BatchSequence& sequence : drawn.sequences) {
      num_tokens += sequence.query_len;
      for (int i = 0; i < sequence.query_len; ++i) {
        const int position = sequence.num_computed + i;
        expected_slots[{sequence.table_row, position}] =
            SlotByDefinition(drawn.table, sequence.table_row, position);
        for (int key = 0; key <= position; ++key) {
          expected.emplace(sequence.table_row, position,
                           SlotByDefinition(drawn.table, sequence.table_row, key), key);
        }
      }
    }

    const int num_rows = static_cast<int>(drawn.sequences.size());
    std::vector<int32_t> order(num_rows);
    ASSERT_TRUE(SplitBatch(drawn.sequences, {}, absl::MakeSpan(order)).ok());
    BatchRequest request = {.sequences = drawn.sequences, .table = drawn.table};
    if (random.OneIn(2)) request.order = order;
    if (random.OneIn(2)) {
      request.padded = PaddedSize{.num_rows = num_rows + random.Int(0, 3),
                                  .num_tokens = num_tokens + random.Int(0, 9)};
    }
    BatchBuilder builder = BuilderOf(num_rows + 3, num_tokens + 9);
    const AllocationCounter allocations;
    const absl::StatusOr<BuiltBatch> built = builder.Build(request);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(built.ok()) << built.status();
    ASSERT_EQ(built->num_live_tokens, num_tokens);

    std::set<Triple> seen;
    std::map<std::pair<int, int>, int64_t> slots;
    for (int r = 0; r < built->batch.num_rows; ++r) {
      const BatchRow row = RowOf(built->batch, r);
      for (int i = 0; i < row.query_len; ++i) {
        const int token = row.first_token + i;
        const int position = built->positions[token];
        ASSERT_EQ(QueryPosition(row, i), position);
        slots[{row.table_row, position}] = built->slot_mapping[token];
        for (const VisibleKey& key : VisibleKeys(layer, row, i, 0)) {
          seen.emplace(row.table_row, position,
                       SlotByDefinition(drawn.table, row.table_row, key.local), key.position);
        }
      }
    }
    ASSERT_EQ(seen, expected);
    ASSERT_EQ(slots, expected_slots);
    for (int t = num_tokens; t < built->batch.num_tokens; ++t) {
      ASSERT_EQ(built->slot_mapping[t], -1);
      ASSERT_EQ(built->positions[t], 0);
    }
  }
}

// Sets the table entries of blocks that the KV group no longer needs to the null block. No query
// reads these blocks.
TEST(BatchBuilderTest, WindowsMatchTheDefinitionOverNullBlocks) {
  int64_t num_dropped = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    Schedule schedule = DrawSchedule({}, random);
    AttentionParams layer = PlainLayer();
    layer.window_left = random.Pick({0, 1, random.Int(0, 64)});
    if (random.OneIn(2)) layer.window_right = random.Pick({0, 1, random.Int(0, 64)});
    const bool causal = random.OneIn(2);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", window " << *layer.window_left << ", "
                                    << layer.window_right.value_or(-1) << ", causal " << causal
                                    << ", " << schedule.Description());
    const VisiblePairs expected = SetByDefinition(schedule, [&](int64_t p, int64_t key) {
      return key >= p - *layer.window_left && (!causal || key <= p) &&
             (!layer.window_right || key <= p + *layer.window_right);
    });
    const KvGroupSpec group = {.retention = KvRetention::kSlidingWindow,
                               .span = *layer.window_left + 1};
    for (const BatchSequence& sequence : schedule.sequences) {
      if (sequence.query_len == 0) continue;
      const int columns = FirstNeededBlock(group, sequence.num_computed, schedule.block_size);
      std::fill_n(&schedule.entries[sequence.table_row * schedule.row_stride], columns, 0);
      num_dropped += columns;
    }
    const ScheduledBatchMemory memory(
        schedule, {.num_rows = schedule.num_rows(), .num_tokens = schedule.num_tokens()});
    PagedBatch batch = memory.built.batch;
    batch.causal = causal;
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, batch, schedule.block_size), expected), "");
    // No block of a new token was replaced, so every new token has a slot.
    for (int64_t slot : memory.built.slot_mapping) ASSERT_GE(slot, schedule.block_size);
  }
  EXPECT_GT(num_dropped, 10000);
}

}  // namespace
}  // namespace reprise
