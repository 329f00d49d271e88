#include "reprise/attention/metadata/batch_gather.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/schedule_generator.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Outputs of a gather, filled with invalid values.
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

// Two tables, {7, 2, 9} and {5, 0, -1}, with block_size 4, in a cache of 10 blocks.
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

TEST(BatchGatherTest, GathersADecodeAndAPrefillChunkAndPadsTheRest) {
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

TEST(BatchGatherTest, AcceptsLengthsInAnyForm) {
  // 2 cached tokens and 4 new tokens, in all three forms.
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

TEST(BatchGatherTest, KeysMayFollowTheEncodersKeysInOneTable) {
  const Inputs inputs = {.table_row = {0}, .query_lens = {2}, .seq_lens = {3}};
  const int32_t key_start[] = {5};
  Memory memory(1, 2);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  gather.key_start = key_start;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.positions, ElementsAre(1, 2));
  EXPECT_THAT(memory.slot_mapping, ElementsAre(10, 11));  // indices 6, 7: block 2
  EXPECT_THAT(memory.key_start, ElementsAre(5));
  EXPECT_EQ(GatherBatch(gather).key_start, memory.key_start.data());
}

TEST(BatchGatherTest, RowsWithFaultsAreInertAndCounted) {
  const auto fault_of = [](int table_row, int query_len, int seq_len) {
    const Inputs inputs = {
        .table_row = {table_row, 0}, .query_lens = {query_len, 1}, .seq_lens = {seq_len, 1}};
    Memory memory(2, 8);
    BatchGatherOnHost(GatherOf(inputs, memory));
    const auto fault = static_cast<RowFault>(memory.row_faults[0]);
    // The next row is live. A row with kNoBlock keeps its tokens, so the next row follows them.
    const bool has_tokens = fault == RowFault::kNone || fault == RowFault::kNoBlock;
    const int expected = has_tokens && table_row >= 0 ? query_len : 0;
    EXPECT_THAT(memory.query_start_loc, ElementsAre(0, expected, expected + 1));
    EXPECT_EQ(memory.slot_mapping[expected], 28);
    EXPECT_EQ(memory.num_faults, fault != RowFault::kNone);
    EXPECT_EQ(memory.row_faults[1], 0);
    if (fault != RowFault::kNone) {
      EXPECT_EQ(memory.seq_lens[0], 0);
      for (int i = 0; i < expected; ++i) EXPECT_EQ(memory.slot_mapping[i], -1);
    }
    return fault;
  };
  EXPECT_EQ(fault_of(0, 2, 12), RowFault::kNone);
  EXPECT_EQ(fault_of(0, 2, 13), RowFault::kLength);  // beyond the table
  EXPECT_EQ(fault_of(0, 2, 1), RowFault::kLength);   // more queries than keys
  EXPECT_EQ(fault_of(0, -1, 4), RowFault::kLength);
  EXPECT_EQ(fault_of(0, 4, 12), RowFault::kNone);
  EXPECT_EQ(fault_of(0, 5, 12), RowFault::kLength);  // more than max_query_len
  EXPECT_EQ(fault_of(2, 1, 4), RowFault::kTableRow);
  EXPECT_EQ(fault_of(-1, 1, 4), RowFault::kNone);     // padded row
  EXPECT_EQ(fault_of(-1, -9, -9), RowFault::kNone);   // lengths of padded rows are not read
  EXPECT_EQ(fault_of(1, 2, 10), RowFault::kNoBlock);  // block -1
  EXPECT_EQ(fault_of(1, 2, 8), RowFault::kNone);      // null block: not written
  EXPECT_EQ(fault_of(0, INT32_MAX, INT32_MAX), RowFault::kLength);
  EXPECT_EQ(fault_of(0, 1, INT32_MIN), RowFault::kLength);
}

TEST(BatchGatherTest, RowsBeyondMaxSeqLenOrTheTableHaveAFault) {
  const Inputs inputs = {.table_row = {0, 0, 0}, .query_lens = {2, 2, 2}, .seq_lens = {7, 8, 7}};
  const int32_t key_start[] = {5, 0, 6};  // part of the table's limit, not of max_seq_len
  Memory memory(3, 6);
  BatchGatherArgs gather = GatherOf(inputs, memory);
  gather.key_start = key_start;
  gather.max_seq_len = 7;
  BatchGatherOnHost(gather);
  EXPECT_THAT(memory.seq_lens, ElementsAre(7, 0, 0));
  const auto length = static_cast<int32_t>(RowFault::kLength);
  EXPECT_THAT(memory.row_faults, ElementsAre(0, length, length));
  EXPECT_EQ(memory.num_faults, 2);
  EXPECT_EQ(GatherBatch(gather).max_seq_len, 7);
}

TEST(BatchGatherTest, RowWithoutRoomAndAllLaterRowsAreInert) {
  const Inputs inputs = {
      .table_row = {0, 0, 0, 0}, .query_lens = {2, 3, 1, 0}, .seq_lens = {2, 5, 6, 0}};
  Memory memory(4, 4);
  BatchGatherOnHost(GatherOf(inputs, memory));
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0, 2, 4, 4, 4));
  EXPECT_THAT(memory.seq_lens, ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(memory.slot_mapping, ElementsAre(28, 29, -1, -1));
  EXPECT_EQ(memory.num_faults, 2);
  const auto no_room = static_cast<int32_t>(RowFault::kNoRoom);
  EXPECT_THAT(memory.row_faults, ElementsAre(0, no_room, no_room, 0));
}

TEST(BatchGatherTest, RowCountOutOfRangeIsClamped) {
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

TEST(BatchGatherTest, EmptyBatchIsAllPadding) {
  Memory memory(0, 3);
  BatchGatherOnHost(GatherOf({}, memory));
  EXPECT_THAT(memory.query_start_loc, ElementsAre(0));
  EXPECT_THAT(memory.slot_mapping, Each(-1));
  EXPECT_EQ(memory.num_faults, 0);
}

// The expected arrays: the tokens of all sequences in order, then padding.
struct Defined {
  std::vector<int32_t> query_start_loc = {0}, seq_lens, table_row, positions;
  std::vector<int64_t> slots;
};

Defined ByDefinition(const Schedule& schedule, const PaddedSize& padded) {
  Defined defined;
  for (const BatchSequence& sequence : schedule.sequences) {
    const bool is_live = sequence.query_len > 0;
    for (int i = 0; i < sequence.query_len; ++i) {
      const int position = sequence.num_computed + i;
      defined.positions.push_back(position);
      defined.slots.push_back(schedule.SlotOf(sequence, position));
    }
    defined.query_start_loc.push_back(static_cast<int32_t>(defined.positions.size()));
    defined.seq_lens.push_back(is_live ? sequence.num_computed + sequence.query_len : 0);
    defined.table_row.push_back(is_live ? sequence.table_row : 0);
  }
  defined.query_start_loc.resize(padded.num_rows + 1, defined.query_start_loc.back());
  defined.seq_lens.resize(padded.num_rows);
  defined.table_row.resize(padded.num_rows);
  defined.positions.resize(padded.num_tokens);
  defined.slots.resize(padded.num_tokens, -1);
  return defined;
}

TEST(BatchGatherTest, ValidBatchesMatchTheDefinition) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << schedule.Description());
    const PaddedSize padded = {.num_rows = schedule.num_rows() + random.Int(0, 3),
                               .num_tokens = schedule.num_tokens() + random.Int(0, 9)};
    const auto meaning = random.Pick({SeqLenForm::kWithStep, SeqLenForm::kBeforeStep});
    Inputs inputs;
    std::vector<int32_t> table_seq_lens(schedule.num_tables + 1, -77);
    int max_query_len = 0, max_seq_len = 0;
    for (const BatchSequence& sequence : schedule.sequences) {
      inputs.table_row.push_back(sequence.table_row);
      inputs.query_lens.push_back(sequence.query_len);
      inputs.seq_lens.push_back(static_cast<int32_t>(
          sequence.num_computed + CountedTokens(meaning, 1, sequence.query_len - 1)));
      table_seq_lens[sequence.table_row] = inputs.seq_lens.back();
      if (sequence.query_len == 0) continue;
      max_query_len = std::max(max_query_len, sequence.query_len);
      max_seq_len = std::max(max_seq_len, sequence.num_computed + sequence.query_len);
    }
    for (auto* array : {&inputs.table_row, &inputs.query_lens, &inputs.seq_lens}) {
      array->resize(padded.num_rows + 1, 1 << 20);  // rows that are not live are not read
    }
    const int32_t num_live_rows = schedule.num_rows();
    Memory memory(padded.num_rows, padded.num_tokens);
    BatchGatherArgs gather = GatherOf(inputs, memory);
    gather.num_live_rows = &num_live_rows;
    gather.seq_len_form = meaning;
    if (random.OneIn(2)) {
      gather.seq_lens = nullptr;
      gather.table_seq_lens = table_seq_lens.data();
    }
    gather.table = schedule.table();
    gather.table.num_blocks = schedule.num_blocks;
    gather.max_query_len = max_query_len;
    gather.max_seq_len = max_seq_len;
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> batch = BuildBatchGather(gather);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_EQ(memory.num_faults, 0);

    const Defined defined = ByDefinition(schedule, padded);
    ASSERT_EQ(memory.query_start_loc, defined.query_start_loc);
    ASSERT_EQ(memory.seq_lens, defined.seq_lens);
    ASSERT_EQ(memory.table_row, defined.table_row);
    ASSERT_EQ(memory.positions, defined.positions);
    ASSERT_EQ(memory.slot_mapping, defined.slots);
    ASSERT_EQ(
        DifferenceOf(VisibleSet(PlainLayer(), *batch, schedule.block_size),
                     SetByDefinition(schedule, [](int64_t p, int64_t key) { return key <= p; })),
        "");
  }
}

constexpr SeqLenForm kForms[] = {SeqLenForm::kBeforeStep, SeqLenForm::kWithoutDrafts,
                                 SeqLenForm::kWithStep};

TEST(SeqLenFormTest, ConvertsBetweenAllForms) {
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
