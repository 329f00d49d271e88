#include "reprise/cache/tables/block_table.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BlockTableUpdate Update(int slot, int column, int block) {
  return {.slot = SlotId(slot), .column = column, .block = BlockId(block)};
}

TEST(BlockTableTest, InitialEntriesAreNullBlocks) {
  BlockTable table = *BlockTable::Create({.num_slots = 2, .max_blocks = 3});
  EXPECT_THAT(table.row(SlotId(0)), Each(kNullBlock));
  EXPECT_THAT(table.row(SlotId(1)), Each(kNullBlock));
}

TEST(BlockTableTest, DataIsIndexedByRowStride) {
  BlockTable table = *BlockTable::Create({.num_slots = 3, .max_blocks = 2, .row_stride = 4});
  EXPECT_EQ(table.row_stride(), 4);
  table.mutable_row(SlotId(2))[1] = BlockId(77);
  EXPECT_EQ(table.data()[2 * 4 + 1], 77);
  EXPECT_THAT(AsInts(table.row(SlotId(2))), ElementsAre(0, 77));
}

TEST(BlockTableTest, ViewFindsTheSlotOfAToken) {
  BlockTable table = *BlockTable::Create({.num_slots = 3, .max_blocks = 2, .row_stride = 4});
  table.mutable_row(SlotId(2))[1] = BlockId(77);
  const BlockTableView view = table.view(/*block_size=*/16, /*num_blocks=*/78);
  EXPECT_EQ(TableSlot(view, 2, 16 + 5), 77 * 16 + 5);
  EXPECT_EQ(TableSlot(view, 2, 5), -1);  // the null block
  EXPECT_EQ(TableSlot(table.view(16, 77), 2, 16 + 5), -1);
  EXPECT_EQ(view.num_tables, 3);
  EXPECT_EQ(TableCapacity(view), 32);
}

TEST(BlockTableTest, KeepsItsAddressWhenMoved) {
  BlockTable table = *BlockTable::Create({.num_slots = 1, .max_blocks = 1});
  const int32_t* data = table.data();
  BlockTable moved = std::move(table);
  EXPECT_EQ(moved.data(), data);
}

TEST(BlockTableTest, LastUpdateOfAnEntryWins) {
  BlockTable table = *BlockTable::Create({.num_slots = 2, .max_blocks = 2});
  const BlockTableUpdate updates[] = {Update(1, 0, 5), Update(1, 1, 6), Update(1, 0, 7)};
  ASSERT_TRUE(table.Apply(updates).ok());
  EXPECT_THAT(table.row(SlotId(1)), ElementsAre(BlockId(7), BlockId(6)));
  EXPECT_THAT(table.row(SlotId(0)), Each(kNullBlock));
}

TEST(BlockTableTest, RejectsUpdatesOutOfRangeWithoutChanges) {
  BlockTable table = *BlockTable::Create({.num_slots = 2, .max_blocks = 2, .row_stride = 8});
  for (const BlockTableUpdate& bad :
       {Update(2, 0, 1), Update(-1, 0, 1), Update(0, 2, 1), Update(0, -1, 1), Update(0, 0, -1)}) {
    const BlockTableUpdate updates[] = {Update(0, 0, 5), bad};
    EXPECT_EQ(table.Apply(updates).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(table.row(SlotId(0)), Each(kNullBlock));
  }
  const BlockTableUpdate wide[] = {Update(1, 2, 9)};
  EXPECT_THAT(std::string(table.Apply(wide).message()),
              HasSubstr("column < 2, block >= 0, got slot 1, column 2, block 9"));
}

TEST(BlockTableTest, RejectsOptionsOutOfRange) {
  const auto message = [](const BlockTableOptions& options) {
    return std::string(BlockTable::Create(options).status().message());
  };
  EXPECT_THAT(message({.num_slots = 0, .max_blocks = 1}), HasSubstr("num_slots"));
  EXPECT_THAT(message({.num_slots = 1, .max_blocks = -1}), HasSubstr("max_blocks"));
  EXPECT_THAT(message({.num_slots = 1, .max_blocks = 4, .row_stride = 3}),
              HasSubstr("row_stride must hold a row: expected at least 4, got 3"));
  EXPECT_THAT(message({.num_slots = 2, .max_blocks = 1, .row_stride = INT64_MAX}),
              HasSubstr("got 2 * 9223372036854775807"));
}

TEST(BlockTableDeathTest, DiesOnARowOutOfRange) {
  BlockTable table = *BlockTable::Create({.num_slots = 2, .max_blocks = 1});
  EXPECT_DEATH(table.row(SlotId(2)), "slot 2 is not of this table of 2");
  EXPECT_DEATH(table.mutable_row(SlotId(-1)), "slot -1 is not of this table");
}

}  // namespace
}  // namespace reprise
