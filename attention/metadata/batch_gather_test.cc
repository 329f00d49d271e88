#include "reprise/attention/metadata/batch_gather.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_builder.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Inputs and poisoned outputs of a gather.
struct Memory {
  Memory(int num_rows, int num_tokens)
      : query_start_loc(num_rows + 1, -77),
        seq_lens(num_rows, -77),
        table_row(num_rows, -77),
        key_start(num_rows, -77),
        row_faults(num_rows, -77),
        positions(num_tokens, -77),
        slot_mapping(num_tokens, -77) {}

  BatchArrays arrays() {
    return {.positions = positions.data(),
            .slot_mapping = slot_mapping.data(),
            .query_start_loc = query_start_loc.data(),
            .seq_lens = seq_lens.data(),
            .table_row = table_row.data(),
            .row_faults = row_faults.data(),
            .key_start = key_start.data()};
  }

  std::vector<int32_t> query_start_loc, seq_lens, table_row, key_start, row_faults, positions;
  std::vector<int64_t> slot_mapping;
  int32_t num_faults = -77;
};

struct Inputs {
  std::vector<int32_t> table_row, query_lens, seq_lens;
};

// Tables {7, 2, 9}, {5, 0, -1} of blocks of 4 tokens, in a cache of 10 blocks.
constexpr int32_t kEntries[] = {7, 2, 9, 5, 0, -1};
constexpr BlockTableView kTable = {.entries = kEntries,
                                   .row_stride = 3,
                                   .num_tables = 2,
                                   .max_blocks = 3,
                                   .block_size = 4,
                                   .num_blocks = 10};

BatchGatherArgs GatherOf(const Inputs& inputs, Memory& memory) {
  return {.table_row = inputs.table_row.data(),
          .query_lens = inputs.query_lens.data(),
          .seq_lens = inputs.seq_lens.data(),
          .table = kTable,
          .num_rows = static_cast<int>(memory.seq_lens.size()),
          .num_tokens = static_cast<int>(memory.positions.size()),
          .max_query_len = 4,
          .max_seq_len = 12,
          .arrays = memory.arrays(),
          .num_faults = &memory.num_faults};
}

TEST(BatchGatherTest, ADecodeAndAPrefillChunkAreGatheredAndTheRestIsPadded) {
  const Inputs inputs = {.table_row = {1, 0, 0}, .query_lens = {1, 4, 0}, .seq_lens = {4, 6, 3}};
  Memory memory(4, 8);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  const int32_t num_live_rows = 3;
  gather.num_live_rows = &num_live_rows;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 1, 5, 5, 5));
  EXPECT_THAT(memory.seq_lens, ElementsAre(4, 6, 0, 0));
  EXPECT_THAT(memory.table_row, ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(memory.positions, ElementsAre(3, 2, 3, 4, 5, 0, 0, 0));
  EXPECT_THAT(memory.slot_mapping, ElementsAre(23, 30, 31, 8, 9, -1, -1, -1));
  EXPECT_EQ(memory.num_faults, 0);
  const PagedBatch batch = GatherBatch(gather);
  EXPECT_EQ(batch.num_rows, 4);
  EXPECT_EQ(batch.num_tokens, 8);
  EXPECT_EQ(batch.seq_lens, memory.seq_lens.data());
  EXPECT_EQ(batch.key_start, nullptr);
}

TEST(BatchGatherTest, LengthsMayCountAsTheEngineDoes) {
  // 2 tokens cached and 4 new ones, said in three ways.
  for (const auto& [meaning, seq_len] :
       std::vector<std::pair<SeqLenForm, int>>{{SeqLenForm::kWithStep, 6},
                                               {SeqLenForm::kBeforeStep, 2},
                                               {SeqLenForm::kWithoutDrafts, 3}}) {
    const Inputs inputs = {.table_row = {0}, .query_lens = {4}, .seq_lens = {seq_len}};
    Memory memory(1, 4);
    BatchGatherArgs gather = GatherOf(inputs, memory);
    gather.seq_len_form = meaning;
    BatchGatherOnHost(gather);
    EXPECT_THAT(memory.seq_lens, ElementsAre(6));
    EXPECT_THAT(memory.positions, ElementsAre(2, 3, 4, 5));
  }
}

TEST(BatchGatherTest, TokensOlderThanTheWriteWindowAreNotWritten) {
  const Inputs inputs = {.table_row = {0, 1}, .query_lens = {5, 1}, .seq_lens = {5, 1}};
  Memory memory(2, 6);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  gather.write_window = 2;
  gather.max_query_len = 5;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.slot_mapping, ElementsAre(-1, -1, -1, 31, 8, 20));
}

TEST(BatchGatherTest, KeysMayFollowAnEncodersInTheSameTable) {
  const Inputs inputs = {.table_row = {0}, .query_lens = {2}, .seq_lens = {3}};
  const int32_t key_start[] = {5};
  Memory memory(1, 2);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  gather.key_start = key_start;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.positions, ElementsAre(1, 2));
  EXPECT_THAT(memory.slot_mapping, ElementsAre(10, 11));  // places 6, 7 in block 2
  EXPECT_THAT(memory.key_start, ElementsAre(5));
  EXPECT_EQ(GatherBatch(gather).key_start, memory.key_start.data());
}

TEST(BatchGatherTest, BadRowsBecomeEmptyAndAreCounted) {
  const auto fault_of = [](int table_row, int query_len, int seq_len) {
    const Inputs inputs = {
        .table_row = {table_row, 0}, .query_lens = {query_len, 1}, .seq_lens = {seq_len, 1}};
    Memory memory(2, 8);
    BatchGatherOnHost(GatherOf(inputs, memory));
    // The next row is served.
    const int expected = memory.num_faults == 1 ? 0 : query_len;
    EXPECT_THAT(memory.query_start_loc, ElementsAre(0, expected, expected + 1));
    EXPECT_EQ(memory.slot_mapping[expected], 28);
    EXPECT_EQ(memory.num_faults, memory.row_faults[0] != 0);
    EXPECT_EQ(memory.row_faults[1], 0);
    if (memory.row_faults[0] != 0) {
      EXPECT_EQ(memory.seq_lens[0], 0);
    }
    return static_cast<RowFault>(memory.row_faults[0]);
  };
  EXPECT_EQ(fault_of(0, 2, 12), RowFault::kNone);
  EXPECT_EQ(fault_of(0, 2, 13), RowFault::kLength);  // beyond the table
  EXPECT_EQ(fault_of(0, 2, 1), RowFault::kLength);   // more queries than keys
  EXPECT_EQ(fault_of(0, -1, 4), RowFault::kLength);
  EXPECT_EQ(fault_of(0, 4, 12), RowFault::kNone);
  EXPECT_EQ(fault_of(0, 5, 12), RowFault::kLength);  // more than max_query_len
  EXPECT_EQ(fault_of(2, 1, 4), RowFault::kTableRow);
  EXPECT_EQ(fault_of(-1, 1, 4), RowFault::kTableRow);
  EXPECT_EQ(fault_of(1, 2, 10), RowFault::kNoBlock);  // into block -1
  EXPECT_EQ(fault_of(1, 2, 8), RowFault::kNone);      // into the null block: not written
  EXPECT_EQ(fault_of(0, INT32_MAX, INT32_MAX), RowFault::kLength);
  EXPECT_EQ(fault_of(0, 1, INT32_MIN), RowFault::kLength);
}

TEST(BatchGatherTest, ARowWithMoreKeysThanTheBatchsBoundHasAFault) {
  const Inputs inputs = {.table_row = {0, 0}, .query_lens = {2, 2}, .seq_lens = {7, 8}};
  const int32_t key_start[] = {5, 0};  // counts for the table, not for the bound
  Memory memory(2, 4);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  gather.key_start = key_start;
  gather.max_seq_len = 7;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.seq_lens, ElementsAre(7, 0));
  EXPECT_THAT(memory.row_faults, ElementsAre(0, static_cast<int32_t>(RowFault::kLength)));
  EXPECT_EQ(memory.num_faults, 1);
  EXPECT_EQ(GatherBatch(gather).max_seq_len, 7);
}

TEST(BatchGatherTest, RowsThatDoNotFitAreBadAndSoAreAllLaterOnes) {
  const Inputs inputs = {
      .table_row = {0, 0, 0, 0}, .query_lens = {2, 3, 1, 0}, .seq_lens = {2, 5, 6, 0}};
  Memory memory(4, 4);
  BatchGatherOnHost(GatherOf(inputs, memory));
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 2, 2, 2, 2));
  EXPECT_THAT(memory.seq_lens, ElementsAre(2, 0, 0, 0));
  EXPECT_EQ(memory.num_faults, 2);
  const auto no_room = static_cast<int32_t>(RowFault::kNoRoom);
  EXPECT_THAT(memory.row_faults, ElementsAre(0, no_room, no_room, 0));
}

TEST(BatchGatherTest, ARowCountOutOfRangeIsCut) {
  const Inputs inputs = {.table_row = {0, 1}, .query_lens = {1, 1}, .seq_lens = {1, 1}};
  for (const auto& [count, live] :
       std::vector<std::pair<int32_t, int>>{{-5, 0}, {0, 0}, {1, 1}, {99, 2}}) {
    Memory memory(2, 2);
    BatchGatherArgs gather = GatherOf(inputs, memory);
    gather.num_live_rows = &count;
    BatchGatherOnHost(gather);
    EXPECT_EQ(memory.query_start_loc[2], live);
  }
}

TEST(BatchGatherTest, AnIdleBatchIsAllPadding) {
  Memory memory(0, 3);
  BatchGatherOnHost(GatherOf({}, memory));
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0));
  EXPECT_THAT(memory.slot_mapping, Each(-1));
  EXPECT_EQ(memory.num_faults, 0);
}

TEST(BatchGatherTest, EveryGoodBatchIsThatOfTheBatchBuilder) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 3),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 9)};
    const ScheduledBatchMemory expected(schedule, padded);
    const auto meaning = random.Pick({SeqLenForm::kWithStep, SeqLenForm::kBeforeStep});
    Inputs inputs;
    for (const BatchSequence& sequence : schedule.sequences) {
      inputs.table_row.push_back(sequence.table_row);
      inputs.query_lens.push_back(sequence.query_len);
      inputs.seq_lens.push_back(static_cast<int32_t>(
          sequence.num_computed + CountedTokens(meaning, 1, sequence.query_len - 1)));
    }
    const int32_t num_live_rows = schedule.num_rows();
    Memory memory(padded.num_rows, padded.num_tokens);
    BatchGatherArgs gather = GatherOf(inputs, memory);
    gather.num_live_rows = &num_live_rows;
    gather.seq_len_form = meaning;
    gather.table = schedule.table();
    gather.table.num_blocks = schedule.num_blocks;
    gather.max_query_len = expected.built.batch.max_query_len;
    gather.max_seq_len = expected.built.batch.max_seq_len;
    const AllocationCounter allocations;
    BatchGatherOnHost(gather);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_EQ(memory.num_faults, 0);

    const PagedBatch& batch = expected.built.batch;
    ASSERT_EQ(
        memory.query_start_loc,
        std::vector<int32_t>(batch.query_start_loc, batch.query_start_loc + padded.num_rows + 1));
    ASSERT_EQ(memory.seq_lens,
              std::vector<int32_t>(batch.seq_lens, batch.seq_lens + padded.num_rows));
    ASSERT_EQ(memory.table_row,
              std::vector<int32_t>(batch.table_row, batch.table_row + padded.num_rows));
    ASSERT_EQ(memory.positions, std::vector<int32_t>(expected.built.positions.begin(),
                                                     expected.built.positions.end()));
    ASSERT_EQ(memory.slot_mapping, std::vector<int64_t>(expected.built.slot_mapping.begin(),
                                                        expected.built.slot_mapping.end()));
    ASSERT_EQ(
        DifferenceOf(VisibleSet(PlainLayer(), GatherBatch(gather), schedule.block_size),
                     SetByDefinition(schedule, [](int64_t p, int64_t key) { return key <= p; })),
        "");
  }
}

constexpr SeqLenForm kForms[] = {SeqLenForm::kBeforeStep, SeqLenForm::kWithoutDrafts,
                                 SeqLenForm::kWithStep};

TEST(SeqLenFormTest, ARowOfTenTokensWithOneCertainAndThreeDraftsHasALengthInEachForm) {
  constexpr int64_t kLengths[] = {10, 11, 14};
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      EXPECT_EQ(ConvertSeqLen(kLengths[from], kForms[from], kForms[to], 1, 3), kLengths[to])
          << from << " to " << to;
    }
  }
}

TEST(SeqLenFormTest, ARowWithoutTokensStaysInert) {
  for (SeqLenForm from : kForms) {
    for (SeqLenForm to : kForms) EXPECT_EQ(ConvertSeqLen(0, from, to, 0, 0), 0);
  }
}

TEST(SeqLenFormTest, ALengthTooSmallForItsFormBecomesNegative) {
  EXPECT_EQ(ConvertSeqLen(2, SeqLenForm::kWithStep, SeqLenForm::kBeforeStep, 1, 3), -2);
}

}  // namespace
}  // namespace reprise
