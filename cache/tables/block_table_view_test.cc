#include "reprise/cache/tables/block_table_view.h"

#include <climits>
#include <cstdint>

#include "gtest/gtest.h"

namespace reprise {
namespace {

static_assert(NumBlocksFor(0, 4) == 0 && NumBlocksFor(1, 4) == 1);
static_assert(NumBlocksFor(4, 4) == 1 && NumBlocksFor(5, 4) == 2);
static_assert(NumBlocksFor(INT32_MAX, 2) == 1 << 30);

TEST(BlockTableViewTest, ASlotIsBlockTimesBlockSizePlusOffset) {
  const int32_t entries[] = {7, 2, -1, 5, 0, 12};
  const BlockTableView table = {entries, 3, 2, 3, 4, 12};
  EXPECT_EQ(TableSlot(table, 0, 6), 10);
  EXPECT_EQ(TableSlot(table, 1, 3), 23);
  EXPECT_EQ(TableSlot(table, 1, 4), -1);   // the null block
  EXPECT_EQ(TableSlot(table, 1, 8), -1);   // outside the cache
  EXPECT_EQ(TableSlot(table, 0, 11), -1);  // negative
  EXPECT_TRUE(HasTableRow(table, 1));
  EXPECT_FALSE(HasTableRow(table, 2));
  EXPECT_FALSE(HasTableRow(table, -1));
  EXPECT_EQ(TableCapacity(table), 12);
}

TEST(BlockTableViewTest, SlotsAndCapacitiesMayExceed32Bits) {
  const int32_t entries[] = {INT32_MAX - 1};
  const BlockTableView table = {entries, 1, 1, 1, 1 << 20, INT32_MAX};
  EXPECT_EQ(TableSlot(table, 0, 5), (int64_t{INT32_MAX} - 1) * (1 << 20) + 5);
  const BlockTableView wide = {nullptr, 0, 0, 1 << 20, 1 << 20, 0};
  EXPECT_EQ(TableCapacity(wide), INT32_MAX);
}

}  // namespace
}  // namespace reprise
