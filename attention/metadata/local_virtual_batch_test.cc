#include "attention/metadata/local_virtual_batch.h"

#include <numeric>
#include <string>
#include <vector>

#include "attention/metadata/batch_builder.h"
#include "attention/testing/schedule_generator.h"
#include "attention/testing/visible_set.h"
#include "base/testing/allocation_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const int32_t> Ints(const int32_t* data, int count) { return {data, size_t(count)}; }

// Poisoned memory for virtual rows.
class Memory {
 public:
  explicit Memory(int max_rows)
      : max_rows_(max_rows),
        query_start_loc_(max_rows + 1, -77),
        seq_lens_(max_rows, -77),
        table_row_(max_rows, -77),
        key_start_(max_rows, -77) {}

  LocalBatchBuffers buffers() {
    return {.query_start_loc = query_start_loc_.data(),
            .seq_lens = seq_lens_.data(),
            .table_row = table_row_.data(),
            .key_start = key_start_.data(),
            .max_rows = max_rows_};
  }

 private:
  int max_rows_;
  std::vector<int32_t> query_start_loc_, seq_lens_, table_row_, key_start_;
};

// Rows of these queries over these keys; row r in table row r.
struct Rows {
  Rows(const std::vector<int>& query_lens, std::vector<int32_t> lens) : seq_lens(std::move(lens)) {
    for (int length : query_lens) query_start_loc.push_back(query_start_loc.back() + length);
  }

  PagedBatch Batch() const {
    const int num_rows = static_cast<int>(seq_lens.size());
    return {.query_start_loc = query_start_loc.data(),
            .seq_lens = seq_lens.data(),
            .num_rows = num_rows,
            .num_tokens = query_start_loc.back(),
            .max_query_len = 99,
            .max_seq_len = 99,
            .num_tables = num_rows,
            .max_blocks = 10};
  }

  std::vector<int32_t> query_start_loc = {0};
  std::vector<int32_t> seq_lens;
};

// The example of SGLang's and vLLM's local attention virtual batches.
TEST(LocalVirtualBatchTest, TheWorkedExampleComesOutLiterally) {
  const Rows rows({4, 10, 5}, {6, 17, 9});
  const int num_rows = MaxLocalRows(3, 19, 4);
  EXPECT_EQ(num_rows, 10);  // 2 * 3 + 19 / 4
  Memory memory(num_rows);
  const absl::StatusOr<PagedBatch> local =
      BuildLocalVirtualBatch(rows.Batch(), 4, memory.buffers());
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->num_rows, 10);
  EXPECT_EQ(local->num_tokens, 19);
  EXPECT_EQ(local->max_query_len, 4);
  EXPECT_EQ(local->max_seq_len, 4);
  // Queries 2 2 | 1 4 4 1 | 4 1.
  EXPECT_THAT(Ints(local->query_start_loc, 11), ElementsAre(0, 2, 4, 5, 9, 13, 14, 18, 19, 19, 19));
  EXPECT_THAT(Ints(local->seq_lens, 10), ElementsAre(4, 2, 4, 4, 4, 1, 4, 1, 0, 0));
  EXPECT_THAT(Ints(local->table_row, 10), ElementsAre(0, 0, 1, 1, 1, 1, 2, 2, 0, 0));
  EXPECT_THAT(Ints(local->key_start, 10), ElementsAre(0, 4, 4, 8, 12, 16, 4, 8, 0, 0));
}

TEST(LocalVirtualBatchTest, DecodesStayOneRowEach) {
  const Rows rows({1, 1, 1}, {8, 9, 1});
  EXPECT_EQ(MaxLocalRows(3, 3, 8), 3);
  Memory memory(3);
  const absl::StatusOr<PagedBatch> local =
      BuildLocalVirtualBatch(rows.Batch(), 8, memory.buffers());
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(Ints(local->query_start_loc, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Ints(local->seq_lens, 3), ElementsAre(8, 1, 1));
  EXPECT_THAT(Ints(local->key_start, 3), ElementsAre(0, 8, 0));
}

TEST(LocalVirtualBatchTest, RowsWithoutQueriesVanishAndRowsWithoutKeysSeeNothing) {
  const Rows rows({0, 3, 0, 2, 0}, {7, 0, 0, 5, 0});
  Memory memory(MaxLocalRows(5, 5, 2));
  const absl::StatusOr<PagedBatch> local =
      BuildLocalVirtualBatch(rows.Batch(), 2, memory.buffers());
  ASSERT_TRUE(local.ok()) << local.status();
  // The three queries without keys in rows of at most two; then positions 3 | 4.
  EXPECT_THAT(Ints(local->query_start_loc, 6), ElementsAre(0, 2, 3, 4, 5, 5));
  EXPECT_THAT(Ints(local->seq_lens, 5), ElementsAre(0, 0, 2, 1, 0));
  EXPECT_THAT(Ints(local->table_row, 5), ElementsAre(0, 0, 3, 3, 0));
}

TEST(LocalVirtualBatchTest, AnIdleBatchIsNoError) {
  const Rows rows({}, {});
  Memory memory(0);
  const absl::StatusOr<PagedBatch> local =
      BuildLocalVirtualBatch(rows.Batch(), 4, memory.buffers());
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->num_rows, 0);
  EXPECT_EQ(local->query_start_loc[0], 0);
}

TEST(LocalVirtualBatchTest, ChunksAreOfPositionsNotOfLocalKeys) {
  // The row's keys begin at token 5 of its table row: positions 5 .. 9, queries at 7, 8, 9.
  const Rows rows({3}, {5});
  const int32_t key_start[] = {5};
  PagedBatch batch = rows.Batch();
  batch.key_start = key_start;
  Memory memory(MaxLocalRows(1, 3, 8));
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(batch, 8, memory.buffers());
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(Ints(local->query_start_loc, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(Ints(local->key_start, 2), ElementsAre(5, 8));
  EXPECT_THAT(Ints(local->seq_lens, 2), ElementsAre(3, 2));
}

// One more row, token or chunk border than the bound would be memory written past its end.
TEST(LocalVirtualBatchTest, NoBatchHasMoreVirtualRowsThanTheBound) {
  for (int chunk_size = 1; chunk_size <= 9; ++chunk_size) {
    for (int query_len = 0; query_len <= 40; ++query_len) {
      for (int before = 0; before <= 12; ++before) {
        const LocalCut cut = CutAtChunks(
            {.query_len = query_len, .seq_len = before + query_len, .key_start = 0}, chunk_size);
        ASSERT_LE(cut.num_rows, MaxLocalRows(1, query_len, chunk_size));
      }
      const LocalCut none = CutAtChunks({.query_len = query_len}, chunk_size);
      ASSERT_LE(none.num_rows, MaxLocalRows(1, query_len, chunk_size));
    }
  }
  static_assert(MaxLocalRows(256, 256, 8192) == 256);
  static_assert(MaxLocalRows(256, 1280, 8192) == 512);
  static_assert(MaxLocalRows(1, INT32_MAX, INT32_MAX) == 3);
  static_assert(MaxLocalRows(INT32_MAX, INT32_MAX, 1) == INT32_MAX);
}

TEST(LocalVirtualBatchTest, LongSequencesAndChunksDoNotOverflow) {
  const Rows rows({2}, {INT32_MAX});
  Memory memory(2);
  for (int chunk_size : {INT32_MAX, INT32_MAX - 1, 1 << 30}) {
    const absl::StatusOr<PagedBatch> local =
        BuildLocalVirtualBatch(rows.Batch(), chunk_size, memory.buffers());
    ASSERT_TRUE(local.ok()) << local.status();
    const int last = (INT32_MAX - 1) / chunk_size * chunk_size;
    EXPECT_EQ(local->key_start[0], (INT32_MAX - 2) / chunk_size * chunk_size);
    const int v = local->query_start_loc[1] == 2 ? 0 : 1;
    EXPECT_EQ(local->key_start[v], last);
    EXPECT_EQ(local->seq_lens[v], INT32_MAX - last);
  }
}

TEST(LocalVirtualBatchTest, BadBatchesAreRefusedWithNamesAndValues) {
  const Rows rows({4, 10}, {6, 17});
  Memory memory(20);
  const auto refusal = [&](const PagedBatch& batch, int chunk_size) {
    const absl::Status status =
        BuildLocalVirtualBatch(batch, chunk_size, memory.buffers()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(rows.Batch(), 0), "chunk_size: expected at least 1, got 0");
  PagedBatch batch = rows.Batch();
  batch.causal = false;
  EXPECT_THAT(refusal(batch, 4), HasSubstr("causal: expected true"));
  batch = rows.Batch();
  batch.tail_len = rows.seq_lens.data();
  EXPECT_THAT(refusal(batch, 4), HasSubstr("tail_len: expected none"));
  batch = rows.Batch();
  batch.key_positions.world = 2;
  EXPECT_THAT(refusal(batch, 4), HasSubstr("key_positions.world: expected 1"));
  batch = rows.Batch();
  batch.num_tokens = -1;
  EXPECT_THAT(refusal(batch, 4), HasSubstr("got 2 and -1"));

  EXPECT_EQ(refusal(Rows({4, 10}, {6, 9}).Batch(), 4),
            "seq_lens[1]: expected at least 10 (its queries), got 9");
  EXPECT_EQ(refusal(Rows({4, 10}, {-6, 17}).Batch(), 4),
            "seq_lens[0]: expected at least 0, got -6");
  Rows descending({4, 10}, {20, 17});
  descending.query_start_loc = {0, 14, 4};
  batch = descending.Batch();
  batch.num_tokens = 14;
  EXPECT_EQ(refusal(batch, 4),
            "query_start_loc[2]: expected 14 (the one before) to 14 (num_tokens), got 4");
  descending.query_start_loc = {1, 4, 14};
  EXPECT_EQ(refusal(descending.Batch(), 4), "query_start_loc[0]: expected 0, got 1");
  const int32_t far[] = {0, INT32_MAX - 16};
  batch = rows.Batch();
  batch.key_start = far;
  EXPECT_EQ(refusal(batch, 4), "key_start[1]: expected 0 to 2147483630, got 2147483631");
  std::vector<int32_t> positions(14);
  std::iota(positions.begin(), positions.begin() + 4, 2);
  std::iota(positions.begin() + 4, positions.end(), 7);
  batch = rows.Batch();
  batch.query_positions = positions.data();
  EXPECT_TRUE(BuildLocalVirtualBatch(batch, 4, memory.buffers()).ok());
  positions[5] = 0;
  EXPECT_EQ(refusal(batch, 4), "query_positions[5]: expected 8 (its place among the keys), got 0");
}

TEST(LocalVirtualBatchTest, BuffersThatDoNotHoldTheBoundAreRefused) {
  const Rows rows({4, 10, 5}, {6, 17, 9});
  Memory small(9);
  EXPECT_EQ(LocalVirtualBatchOver(rows.Batch(), 4, small.buffers()).status().message(),
            "buffers.max_rows: expected at least 10 (MaxLocalRows), got 9");
  Memory memory(10);
  LocalBatchBuffers buffers = memory.buffers();
  buffers.key_start = nullptr;
  EXPECT_FALSE(LocalVirtualBatchOver(rows.Batch(), 4, buffers).ok());
}

TEST(LocalVirtualBatchTest, TheKeysSeenAreThoseOfTheQuerysOwnChunk) {
  int64_t num_pairs = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    const int64_t chunk = random.Pick({1, 4, 16, random.Int(1, 64)});
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", chunk " << chunk << ", " << schedule.Description());
    const ScheduledBatchMemory plain(schedule,
                                     {.num_rows = schedule.num_rows() + random.Int(0, 3),
                                      .num_tokens = schedule.num_tokens() + random.Int(0, 9)});
    PagedBatch batch = plain.built.batch;
    if (random.OneIn(2)) batch.query_positions = plain.built.positions.data();
    AttentionParams layer = PlainLayer();
    if (random.OneIn(4)) layer.window_left = random.Int(0, 20);

    Memory memory(MaxLocalRows(batch.num_rows, batch.num_tokens, static_cast<int>(chunk)));
    const LocalBatchBuffers buffers = memory.buffers();
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> local =
        BuildLocalVirtualBatch(batch, static_cast<int>(chunk), buffers);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(local.ok()) << local.status();
    for (int v = 0; v < local->num_rows; ++v) {
      const int query_len = local->query_start_loc[v + 1] - local->query_start_loc[v];
      ASSERT_GE(query_len, 0);
      ASSERT_LE(query_len, local->max_query_len);
      ASSERT_GE(local->seq_lens[v], 0);
      ASSERT_LE(local->seq_lens[v], local->max_seq_len);
    }
    const VisiblePairs expected = SetByDefinition(schedule, [&](int64_t p, int64_t key) {
      return key <= p && key / chunk == p / chunk &&
             (!layer.window_left || key >= p - *layer.window_left);
    });
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, *local, schedule.block_size), expected), "");
    num_pairs += static_cast<int64_t>(expected.size());
  }
  EXPECT_GT(num_pairs, 1000000);
}

}  // namespace
}  // namespace reprise
