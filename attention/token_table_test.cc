#include "attention/token_table.h"

#include <string>
#include <vector>

#include "attention/testing/schedule_generator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

struct Padded {
  Padded(int num_rows, int max_blocks)
      : entries(static_cast<size_t>(num_rows) * max_blocks, -77),
        seq_lens(num_rows, -77),
        view({.entries = absl::MakeSpan(entries),
              .row_stride = max_blocks,
              .max_blocks = max_blocks,
              .seq_lens = absl::MakeSpan(seq_lens)}) {}

  std::vector<int32_t> entries, seq_lens;
  MutablePaddedBlockTable view;
};

TEST(TokenTableTest, AlignedRunsOfSlotsAreBlocks) {
  const std::vector<int32_t> slots = {12, 13, -1, -1, -1, -1, 28, 29, 30, 31, 8, 9};
  const TokenTableView table = {
      .slots = slots.data(), .row_stride = 6, .num_tables = 2, .max_tokens = 6};
  Padded padded(2, 3);
  const std::vector<int32_t> table_row = {1, 0};
  ASSERT_TRUE(FillBlocksOfTokens(table, table_row, {6, 2}, 4, padded.view).ok());
  EXPECT_THAT(padded.entries, ElementsAre(7, 2, 0, 3, 0, 0));
  EXPECT_THAT(padded.seq_lens, ElementsAre(6, 2));
}

TEST(TokenTableTest, SlotsThatAreNoBlocksAreRefusedByTokenAndRow) {
  std::vector<int32_t> slots = {28, 29, 31, 30};
  const TokenTableView table = {
      .slots = slots.data(), .row_stride = 4, .num_tables = 1, .max_tokens = 4};
  Padded padded(1, 1);
  const auto refusal = [&](int length, int block_size) {
    const absl::Status status = FillBlocksOfTokens(table, {}, {length}, block_size, padded.view);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(4, 4), "table row 0, token 2: expected slot 30 of block 7, got 31");
  slots = {29, 30, 31, 32};
  EXPECT_EQ(refusal(4, 4), "table row 0, token 0: expected slot 28 of block 7, got 29");
  slots = {-4, -3, -2, -1};
  EXPECT_EQ(refusal(4, 4), "table row 0, token 0: expected slot -4 of block -1, got -4");
  EXPECT_EQ(refusal(5, 8), "lens[0]: expected 0 to 4, got 5");  // of max_tokens
  EXPECT_EQ(refusal(4, 2), "lens[0]: expected 0 to 2, got 4");  // of the output's width
  EXPECT_EQ(refusal(-1, 4), "lens[0]: expected 0 to 4, got -1");
  EXPECT_EQ(refusal(4, 0), "block_size: expected at least 1, got 0");
  EXPECT_EQ(FillBlocksOfTokens(table, {1}, {1}, 1, padded.view).message(),
            "table_row[0]: expected 0 to 0, got 1");
}

TEST(TokenTableTest, TheTokensOfABlockTableGiveItBack) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Schedule schedule = DrawSchedule({}, random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << schedule.Description());
    const int max_tokens = schedule.max_blocks * schedule.block_size + random.Int(0, 3);
    std::vector<int32_t> slots(static_cast<size_t>(schedule.num_tables) * max_tokens, -5);
    std::vector<int32_t> table_row, lens;
    for (const BatchSequence& sequence : schedule.sequences) {
      table_row.push_back(sequence.table_row);
      lens.push_back(static_cast<int32_t>(sequence.seq_len()));
      for (int t = 0; t < sequence.seq_len(); ++t) {
        slots[sequence.table_row * max_tokens + t] =
            static_cast<int32_t>(schedule.SlotOf(sequence, t));
      }
    }
    Padded padded(schedule.num_rows(), schedule.max_blocks);
    ASSERT_TRUE(FillBlocksOfTokens({.slots = slots.data(),
                                    .row_stride = max_tokens,
                                    .num_tables = schedule.num_tables,
                                    .max_tokens = max_tokens},
                                   table_row, lens, schedule.block_size, padded.view)
                    .ok());
    for (int r = 0; r < schedule.num_rows(); ++r) {
      const int num_blocks = (lens[r] + schedule.block_size - 1) / schedule.block_size;
      for (int column = 0; column < schedule.max_blocks; ++column) {
        ASSERT_EQ(padded.entries[r * schedule.max_blocks + column],
                  column < num_blocks
                      ? schedule.entries[table_row[r] * schedule.row_stride + column]
                      : 0);
      }
    }
  }
}

}  // namespace
}  // namespace reprise
