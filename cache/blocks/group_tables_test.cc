#include "reprise/cache/blocks/group_tables.h"

#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SlotId kA(0), kB(1);

GroupTables TablesOf(int num_groups) {
  return *GroupTables::Create({.num_groups = num_groups, .num_slots = 2, .max_blocks = 6});
}

void Add(GroupTables& tables, SlotId slot, int group, std::vector<int32_t> blocks) {
  const absl::Span<BlockId> added = tables.Extend(slot, group, static_cast<int>(blocks.size()));
  for (size_t i = 0; i < blocks.size(); ++i) added[i] = BlockId(blocks[i]);
  tables.CheckInvariants();
}

// Formats updates as (group, slot, column, block).
using Update = std::tuple<int, int, int, int>;
std::vector<Update> Taken(GroupTables& tables) {
  std::vector<Update> updates;
  for (const BlockTableUpdate& u : tables.TakeUpdates()) {
    updates.emplace_back(u.group, u.slot.value(), u.column, u.block.value());
  }
  tables.CheckInvariants();
  return updates;
}

TEST(GroupTablesTest, NewBlocksAreReportedOnce) {
  GroupTables tables = TablesOf(2);
  Add(tables, kB, 1, {7, 8});
  Add(tables, kA, 0, {3});
  EXPECT_THAT(Taken(tables),
              ElementsAre(Update(1, 1, 0, 7), Update(1, 1, 1, 8), Update(0, 0, 0, 3)));
  EXPECT_THAT(Taken(tables), IsEmpty());
  Add(tables, kB, 1, {9});
  EXPECT_THAT(Taken(tables), ElementsAre(Update(1, 1, 2, 9)));
}

TEST(GroupTablesTest, BlocksRemovedAtTheFrontBecomeNullBlocks) {
  GroupTables tables = TablesOf(1);
  Add(tables, kA, 0, {3, 4, 5});
  Taken(tables);
  EXPECT_EQ(tables.RemoveFront(kA, 0), BlockId(3));
  EXPECT_EQ(tables.RemoveFront(kA, 0), BlockId(4));
  EXPECT_THAT(tables.blocks(kA, 0), ElementsAre(kNullBlock, kNullBlock, BlockId(5)));
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 0, 0), Update(0, 0, 1, 0)));
  EXPECT_THAT(Taken(tables), IsEmpty());
}

TEST(GroupTablesTest, BlocksThatWereNeverReportedAreNotCleared) {
  GroupTables tables = TablesOf(1);
  Add(tables, kA, 0, {3, 4, 5});
  tables.RemoveFront(kA, 0);
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 1, 4), Update(0, 0, 2, 5)));
}

TEST(GroupTablesTest, RemovedTailColumnsAreClearedWhenTheFrontPassesThem) {
  GroupTables tables = TablesOf(1);
  Add(tables, kA, 0, {2, 3, 4, 5});
  Taken(tables);
  tables.RemoveBack(kA, 0);
  tables.RemoveBack(kA, 0);
  // The device still has blocks 4 and 5, which it does not read.
  EXPECT_THAT(Taken(tables), IsEmpty());
  Add(tables, kA, 0, {6, 7, 8});
  for (int i = 0; i < 4; ++i) tables.RemoveFront(kA, 0);
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 0, 0), Update(0, 0, 1, 0), Update(0, 0, 2, 0),
                                         Update(0, 0, 3, 0), Update(0, 0, 4, 8)));
}

TEST(GroupTablesTest, ReplacedBlockIsReportedAgain) {
  GroupTables tables = TablesOf(1);
  Add(tables, kA, 0, {3, 4});
  Taken(tables);
  tables.Replace(kA, 0, 1, BlockId(9));
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 1, 9)));
  EXPECT_EQ(tables.table(0).row(kA)[1], BlockId(9));
}

TEST(GroupTablesTest, RowMayBeginAfterNullBlocks) {
  GroupTables tables = TablesOf(1);
  tables.StartAt(kA, 0, 2);
  Add(tables, kA, 0, {5});
  EXPECT_EQ(tables.first(kA, 0), 2);
  EXPECT_EQ(tables.end(kA, 0), 3);
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 2, 5)));
}

TEST(GroupTablesTest, EmptiedRowsAreNotReported) {
  GroupTables tables = TablesOf(1);
  Add(tables, kA, 0, {3, 4});
  tables.RemoveBack(kA, 0);
  tables.RemoveBack(kA, 0);
  tables.Reset(kA, 0);
  EXPECT_THAT(Taken(tables), IsEmpty());
  Add(tables, kA, 0, {5});
  EXPECT_THAT(Taken(tables), ElementsAre(Update(0, 0, 0, 5)));
}

TEST(GroupTablesTest, RejectsInvalidSizes) {
  const auto message = [](GroupTablesOptions options) {
    return std::string(GroupTables::Create(options).status().message());
  };
  EXPECT_THAT(message({.num_groups = 0, .num_slots = 1, .max_blocks = 1}), HasSubstr("num_groups"));
  EXPECT_THAT(message({.num_slots = 0, .max_blocks = 1}), HasSubstr("num_slots"));
  EXPECT_THAT(message({.num_slots = 1, .max_blocks = -1}), HasSubstr("max_blocks"));
}

TEST(GroupTablesDeathTest, CheckInvariantsDiesOnADuplicateBlockInASlot) {
  GroupTables tables = TablesOf(2);
  Add(tables, kA, 0, {3});
  tables.Extend(kA, 1, 1)[0] = BlockId(3);
  EXPECT_DEATH(tables.CheckInvariants(), "invariant 3");
  EXPECT_DEATH(tables.RemoveFront(kB, 0), "");
}

}  // namespace
}  // namespace reprise
