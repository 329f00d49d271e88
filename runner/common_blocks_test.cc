#include "reprise/runner/common_blocks.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

// Tables, and a CommonBlocks that receives the same changes.
class Tables {
 public:
  Tables(int num_slots, int max_blocks)
      : blocks_({.num_slots = num_slots, .max_blocks = max_blocks}), tables_(num_slots) {}

  void Leave(int slot) {
    const SlotId leaves[] = {SlotId(slot)};
    blocks_.Follow({.leaves = leaves});
    tables_[slot].clear();
  }
  // Writes `block` into a column, which must be at most the next free column.
  void Set(int slot, int column, int32_t block) {
    const BlockTableUpdate updates[] = {
        {.slot = SlotId(slot), .column = column, .block = BlockId(block)}};
    blocks_.Follow({.updates = updates});
    std::vector<int32_t>& table = tables_[slot];
    if (column == static_cast<int>(table.size())) table.push_back(block);
    table[column] = block;
  }
  void Fill(int slot, const std::vector<int32_t>& table) {
    Leave(slot);
    for (size_t c = 0; c < table.size(); ++c) Set(slot, static_cast<int>(c), table[c]);
  }

  int Count(const std::vector<int>& slots) {
    std::vector<ScheduledRow> rows;
    for (const int slot : slots) rows.push_back({.slot = SlotId(slot)});
    return blocks_.Count(rows);
  }
  // Counts common columns by a full comparison.
  int Compared(const std::vector<int>& slots) const {
    int count = slots.empty() ? 0 : static_cast<int>(tables_[slots[0]].size());
    for (const int slot : slots) {
      const std::vector<int32_t>& a = tables_[slots[0]];
      const std::vector<int32_t>& b = tables_[slot];
      const auto differs = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
      count = std::min(count, static_cast<int>(differs.first - a.begin()));
    }
    return count;
  }

  CommonBlocks& blocks() { return blocks_; }
  const std::vector<int32_t>& table(int slot) const { return tables_[slot]; }

 private:
  CommonBlocks blocks_;
  std::vector<std::vector<int32_t>> tables_;
};

TEST(CommonBlocksTest, CountsTheLeadingBlocksThatAllRowsShare) {
  Tables tables(4, 8);
  tables.Fill(0, {7, 2, 9, 4});
  tables.Fill(1, {7, 2, 6});
  tables.Fill(2, {7, 2, 9, 5});
  tables.Fill(3, {3});
  EXPECT_EQ(tables.Count({}), 0);
  EXPECT_EQ(tables.Count({0}), 4);
  EXPECT_EQ(tables.Count({0, 2}), 3);
  EXPECT_EQ(tables.Count({0, 1, 2}), 2);
  EXPECT_EQ(tables.Count({1, 2}), 2);
  EXPECT_EQ(tables.Count({0, 1, 2, 3}), 0);
  EXPECT_EQ(tables.Count({2, 0}), 3);
}

TEST(CommonBlocksTest, ReplacedBlockEndsTheCommonPrefix) {
  Tables tables(2, 8);
  tables.Fill(0, {7, 2, 9});
  tables.Fill(1, {7, 2, 9});
  EXPECT_EQ(tables.Count({0, 1}), 3);
  tables.Set(1, 2, 5);  // like the copy-on-write of a fork
  EXPECT_EQ(tables.Count({0, 1}), 2);
  tables.Set(0, 2, 5);
  EXPECT_EQ(tables.Count({0, 1}), 3);
  tables.Leave(1);
  EXPECT_EQ(tables.Count({0, 1}), 0);
}

TEST(CommonBlocksTest, SteadyStepsCompareNoTables) {
  const int num_slots = 64;
  Tables tables(num_slots, 600);
  std::vector<int> all;
  std::vector<int32_t> prefix;
  for (int i = 0; i < 256; ++i) prefix.push_back(1 + i);
  for (int slot = 0; slot < num_slots; ++slot) {
    tables.Fill(slot, prefix);
    all.push_back(slot);
  }
  int32_t next_block = 1000;
  EXPECT_EQ(tables.Count(all), 256);
  for (int column = 256; column < 600; ++column) {
    for (const int slot : all) {
      tables.Set(slot, column, next_block++);
      ASSERT_EQ(tables.Count(all), 256);
    }
  }
  EXPECT_LE(tables.blocks().num_references(), 2);
}

TEST(CommonBlocksTest, AllocatesNothing) {
  CommonBlocks blocks({.num_slots = 2, .max_blocks = 4});
  const BlockTableUpdate updates[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(5)},
                                      {.slot = SlotId(1), .column = 0, .block = BlockId(5)}};
  const ScheduledRow rows[] = {{.slot = SlotId(0)}, {.slot = SlotId(1)}};
  AllocationCounter allocations;
  blocks.Follow({.updates = updates});
  EXPECT_EQ(blocks.Count(rows), 1);
  EXPECT_EQ(allocations.count(), 0);
}

TEST(CommonBlocksTest, IgnoresUpdatesOfOtherGroups) {
  CommonBlocks blocks({.num_slots = 2, .max_blocks = 4, .group = 1});
  const BlockTableUpdate updates[] = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(5), .group = 1},
      {.slot = SlotId(1), .column = 0, .block = BlockId(5), .group = 1},
      {.slot = SlotId(1), .column = 0, .block = BlockId(6), .group = 0}};
  blocks.Follow({.updates = updates});
  const ScheduledRow rows[] = {{.slot = SlotId(0)}, {.slot = SlotId(1)}};
  EXPECT_EQ(blocks.Count(rows), 1);
}

// Few prefixes and few blocks, so that tables often agree and often differ.
TEST(CommonBlocksTest, IncrementalCountMatchesFullComparison) {
  const int seed = 12;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const int num_slots = 7;
  const int max_blocks = 9;
  Tables tables(num_slots, max_blocks);
  for (int step = 0; step < 50000; ++step) {
    for (int changes = rng() % 4; changes > 0; --changes) {
      const int slot = static_cast<int>(rng() % num_slots);
      const int filled = static_cast<int>(tables.table(slot).size());
      const int kind = static_cast<int>(rng() % 8);
      if (kind == 0) {
        tables.Leave(slot);
      } else if (kind == 1 && filled > 0) {
        tables.Set(slot, static_cast<int>(rng() % filled), 1 + static_cast<int32_t>(rng() % 2));
      } else if (kind == 2) {
        tables.Fill(slot, std::vector<int32_t>(tables.table(rng() % num_slots)));
      } else if (filled < max_blocks) {
        tables.Set(slot, filled, 1 + static_cast<int32_t>(rng() % 8 == 0));
      }
    }
    std::vector<int> slots;
    for (int slot = 0; slot < num_slots; ++slot) {
      if (rng() % 3 != 0) slots.push_back(slot);
    }
    std::shuffle(slots.begin(), slots.end(), rng);
    ASSERT_EQ(tables.Count(slots), tables.Compared(slots)) << "step " << step;
  }
}

}  // namespace
}  // namespace reprise
