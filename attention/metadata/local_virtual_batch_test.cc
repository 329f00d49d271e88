#include "reprise/attention/metadata/local_virtual_batch.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const int32_t> Ints(const int32_t* data, int count) { return {data, size_t(count)}; }

// Memory for virtual rows, filled with invalid values.
class Memory {
 public:
  explicit Memory(int max_rows)
      : max_rows_(max_rows),
        query_start_loc_(max_rows + 1, -77),
        seq_lens_(max_rows, -77),
        table_row_(max_rows, -77),
        key_start_(max_rows, -77) {}

  LocalVirtualBatchArgs Args(const PagedBatch& batch, int chunk_size) {
    return {.batch = batch,
            .chunk_size = chunk_size,
            .buffers = {.query_start_loc = query_start_loc_.data(),
                        .seq_lens = seq_lens_.data(),
                        .table_row = table_row_.data(),
                        .key_start = key_start_.data(),
                        .max_rows = max_rows_}};
  }

 private:
  int max_rows_;
  std::vector<int32_t> query_start_loc_, seq_lens_, table_row_, key_start_;
};

// Rows with the given numbers of queries and keys. Row r uses table row r.
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

// The example of the local attention virtual batches in SGLang and vLLM.
TEST(LocalVirtualBatchTest, MatchesTheWorkedExample) {
  const Rows rows({4, 10, 5}, {6, 17, 9});
  const int num_rows = MaxLocalRows(3, 19, 4);
  EXPECT_EQ(num_rows, 10);  // 2 * 3 + 19 / 4
  Memory memory(num_rows);
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(memory.Args(rows.Batch(), 4));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->num_rows, 10);
  EXPECT_EQ(local->num_tokens, 19);
  EXPECT_EQ(local->max_query_len, 4);
  EXPECT_EQ(local->max_seq_len, 4);
  // Queries per virtual row: 2 2 | 1 4 4 1 | 4 1.
  EXPECT_THAT(Ints(local->query_start_loc, 11), ElementsAre(0, 2, 4, 5, 9, 13, 14, 18, 19, 19, 19));
  EXPECT_THAT(Ints(local->seq_lens, 10), ElementsAre(4, 2, 4, 4, 4, 1, 4, 1, 0, 0));
  EXPECT_THAT(Ints(local->table_row, 10), ElementsAre(0, 0, 1, 1, 1, 1, 2, 2, 0, 0));
  EXPECT_THAT(Ints(local->key_start, 10), ElementsAre(0, 4, 4, 8, 12, 16, 4, 8, 0, 0));
}

TEST(LocalVirtualBatchTest, DecodesHaveOneVirtualRowEach) {
  const Rows rows({1, 1, 1}, {8, 9, 1});
  EXPECT_EQ(MaxLocalRows(3, 3, 8), 3);
  Memory memory(3);
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(memory.Args(rows.Batch(), 8));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(Ints(local->query_start_loc, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Ints(local->seq_lens, 3), ElementsAre(8, 1, 1));
  EXPECT_THAT(Ints(local->key_start, 3), ElementsAre(0, 8, 0));
}

TEST(LocalVirtualBatchTest, RowsWithoutQueriesHaveNoVirtualRows) {
  const Rows rows({0, 3, 0, 2, 0}, {7, 0, 0, 5, 0});
  Memory memory(MaxLocalRows(5, 5, 2));
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(memory.Args(rows.Batch(), 2));
  ASSERT_TRUE(local.ok()) << local.status();
  // The three queries without keys are in virtual rows of at most two queries. Then positions 3 |
  // 4.
  EXPECT_THAT(Ints(local->query_start_loc, 6), ElementsAre(0, 2, 3, 4, 5, 5));
  EXPECT_THAT(Ints(local->seq_lens, 5), ElementsAre(0, 0, 2, 1, 0));
  EXPECT_THAT(Ints(local->table_row, 5), ElementsAre(0, 0, 3, 3, 0));
}

TEST(LocalVirtualBatchTest, AcceptsAnEmptyBatch) {
  const Rows rows({}, {});
  Memory memory(0);
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(memory.Args(rows.Batch(), 4));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->num_rows, 0);
  EXPECT_EQ(local->query_start_loc[0], 0);
}

TEST(LocalVirtualBatchTest, ChunksFollowPositionsRatherThanLocalKeys) {
  // The row's keys begin at token 5 of its table row. Keys: positions 5 .. 9; queries: 7, 8, 9.
  const Rows rows({3}, {5});
  const int32_t key_start[] = {5};
  PagedBatch batch = rows.Batch();
  batch.key_start = key_start;
  Memory memory(MaxLocalRows(1, 3, 8));
  const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(memory.Args(batch, 8));
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_THAT(Ints(local->query_start_loc, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(Ints(local->key_start, 2), ElementsAre(5, 8));
  EXPECT_THAT(Ints(local->seq_lens, 2), ElementsAre(3, 2));
}

// If a valid batch had more virtual rows than the bound, the builder would remove the keys of rows
// (kNoRoom).
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
        BuildLocalVirtualBatch(memory.Args(rows.Batch(), chunk_size));
    ASSERT_TRUE(local.ok()) << local.status();
    const int last = (INT32_MAX - 1) / chunk_size * chunk_size;
    EXPECT_EQ(local->key_start[0], (INT32_MAX - 2) / chunk_size * chunk_size);
    const int v = local->query_start_loc[1] == 2 ? 0 : 1;
    EXPECT_EQ(local->key_start[v], last);
    EXPECT_EQ(local->seq_lens[v], INT32_MAX - last);
  }
}

TEST(LocalVirtualBatchTest, RejectsInvalidRows) {
  const Rows rows({4, 10}, {6, 17});
  Memory memory(20);
  const auto refusal = [&](const PagedBatch& batch) {
    const absl::Status status = BuildLocalVirtualBatch(memory.Args(batch, 4)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(Rows({4, 10}, {6, 9}).Batch()),
            "rows[1]: a length or a count is negative or too large: tokens 4 to 14 of 14, seq_len "
            "9, key_start 0");
  EXPECT_THAT(refusal(Rows({4, 10}, {-6, 17}).Batch()),
              AllOf(HasSubstr("rows[0]: a length"), HasSubstr("seq_len -6")));
  Rows descending({4, 10}, {20, 17});
  descending.query_start_loc = {0, 14, 4};
  PagedBatch batch = descending.Batch();
  batch.num_tokens = 14;
  EXPECT_THAT(refusal(batch), AllOf(HasSubstr("rows[1]: a length"), HasSubstr("tokens 14 to 4")));
  descending.query_start_loc = {1, 4, 14};
  EXPECT_EQ(refusal(descending.Batch()), "query_start_loc[0]: expected 0, got 1");
  const int32_t far[] = {0, INT32_MAX - 16};
  batch = rows.Batch();
  batch.key_start = far;
  EXPECT_THAT(refusal(batch), HasSubstr("seq_len 17, key_start 2147483631"));
  std::vector<int32_t> positions(14);
  std::iota(positions.begin(), positions.begin() + 4, 2);
  std::iota(positions.begin() + 4, positions.end(), 7);
  batch = rows.Batch();
  batch.query_positions = positions.data();
  EXPECT_TRUE(BuildLocalVirtualBatch(memory.Args(batch, 4)).ok());
  positions[5] = 0;
  EXPECT_EQ(refusal(batch), "query_positions[5]: expected 8 (its position among the keys), got 0");
}

TEST(LocalVirtualBatchTest, InvalidRowsHaveNoKeysAndAFault) {
  // Rows: more queries than keys; valid; negative seq_len, no queries; key_start + seq_len beyond
  // int32; valid.
  Rows rows({3, 2, 0, 2, 1}, {2, 6, -1, 9, 3});
  const int32_t key_start[] = {0, 0, 0, INT32_MAX - 8, 0};
  PagedBatch batch = rows.Batch();
  batch.key_start = key_start;
  Memory memory(MaxLocalRows(5, 8, 4));
  int32_t row_faults[5], num_faults = -77;
  LocalVirtualBatchArgs args = memory.Args(batch, 4);
  args.row_faults = row_faults;
  args.num_faults = &num_faults;
  LocalVirtualBatchOnHost(args);
  const PagedBatch local = LocalVirtualBatch(args);
  EXPECT_THAT(Ints(local.query_start_loc, 9), ElementsAre(0, 3, 5, 7, 8, 8, 8, 8, 8));
  EXPECT_THAT(Ints(local.seq_lens, 8), ElementsAre(0, 2, 0, 3, 0, 0, 0, 0));
  EXPECT_THAT(Ints(local.key_start, 8), ElementsAre(0, 4, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Ints(local.table_row, 8), ElementsAre(0, 1, 0, 4, 0, 0, 0, 0));
  constexpr auto kLength = static_cast<int>(RowFault::kLength);
  EXPECT_THAT(row_faults, ElementsAre(kLength, 0, kLength, kLength, 0));
  EXPECT_EQ(num_faults, 3);
}

// A decreasing query_start_loc counts tokens several times. Rows beyond the bound get kNoRoom.
TEST(LocalVirtualBatchTest, NoVirtualRowIsWrittenBeyondTheBound) {
  Rows rows({}, {4, 4, 4, 4});
  rows.query_start_loc = {0, 4, 0, 4, 0};
  PagedBatch batch = rows.Batch();
  batch.num_tokens = 4;
  Memory memory(4);
  int32_t row_faults[4], num_faults = -77;
  LocalVirtualBatchArgs args = memory.Args(batch, 1);
  args.row_faults = row_faults;
  args.num_faults = &num_faults;
  LocalVirtualBatchOnHost(args);
  EXPECT_THAT(Ints(args.buffers.seq_lens, 4), ElementsAre(1, 1, 1, 1));
  constexpr auto kLength = static_cast<int>(RowFault::kLength);
  EXPECT_THAT(row_faults, ElementsAre(0, kLength, static_cast<int>(RowFault::kNoRoom), kLength));
  EXPECT_EQ(num_faults, 3);
}

TEST(LocalVirtualBatchTest, VisibleKeysMatchTheDefinition) {
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
    const LocalVirtualBatchArgs args = memory.Args(batch, static_cast<int>(chunk));
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(args);
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
