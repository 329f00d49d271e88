#include "reprise/runner/step_cascade.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr int kSlots = 8;
constexpr int kBlockSize = 16;

// Reading a key of 1 KV head with 250 + 250 dims of 2 bytes takes 1 ns, and so does rereading it. A
// separate prefix costs 0.05 us, plus 0.01 us per row.
constexpr CascadeCosts kCosts = {
    .read_tb_per_s = 1, .reread_tb_per_s = 1, .prefix_us = 0.05, .merge_us_per_token = 0.01};
constexpr CascadeShape kLayer = {
    .num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 250, .head_dim_v = 250};

class StepCascadeTest : public testing::Test {
 protected:
  explicit StepCascadeTest(const std::vector<int>& groups = {0}, int num_groups = 1)
      : options_{.classes = {{.layer = kLayer, .num_layers = 3}},
                 .groups = groups,
                 .costs = kCosts,
                 .num_slots = kSlots,
                 .max_blocks = 64,
                 .block_size = kBlockSize,
                 .max_seq_len = 1024},
        mirror_({.max_num_seqs = kSlots,
                 .max_num_tokens = 256,
                 .max_seq_len = 1024,
                 .vocab_size = 10,
                 .num_blocks = 1000,
                 .block_size = kBlockSize,
                 .groups = std::vector<KvGroupSpec>(num_groups)}),
        cascade_(options_) {}

  // Adds a slot with `num_keys` cached keys. All slots have the same first `num_shared` blocks.
  void Join(int slot, int num_keys, int num_shared, int group = 0) {
    if (group == 0) {
      joins_.push_back({.slot = SlotId(slot), .seq_len = num_keys, .prompt_len = num_keys});
    }
    for (int column = 0; column <= num_keys / kBlockSize; ++column) {
      const int32_t block = column < num_shared ? 1 + column : 100 * (slot + 1) + column;
      updates_.push_back(
          {.slot = SlotId(slot), .column = column, .block = BlockId(block), .group = group});
    }
  }
  void Leave(int slot) { leaves_.push_back(SlotId(slot)); }

  // Decides for a step with one row per slot, with `num_queries` queries per row.
  StepCascade::Decision Step(const std::vector<int>& slots, int num_queries = 1) {
    const std::vector<int32_t> tokens(num_queries, 1);
    std::vector<ScheduledRow> rows;
    for (const int slot : slots) rows.push_back({.slot = SlotId(slot), .tokens = tokens});
    const ScheduledBatch batch = {
        .leaves = leaves_, .joins = joins_, .updates = updates_, .rows = rows};
    const auto demand = mirror_.Advance(batch);
    EXPECT_TRUE(demand.ok()) << demand.status();
    const StepCascade::Decision decision = cascade_.Decide(batch, mirror_);
    leaves_.clear();
    joins_.clear();
    updates_.clear();
    return decision;
  }

  StepCascadeOptions options_;
  SlotMirror mirror_;
  StepCascade cascade_;
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<BlockTableUpdate> updates_;
};

TEST_F(StepCascadeTest, RowsThatBeginWithTheSameBlocksReadThemOnce) {
  for (int slot = 0; slot < 4; ++slot) Join(slot, 150 + slot, 9);
  const StepCascade::Decision decision = Step({0, 1, 2, 3});
  EXPECT_EQ(decision.rule.reason, CascadeReason::kUse) << decision.rule;
  EXPECT_EQ(decision.common_prefix_len, 9 * 16);
  // Three layers. Without cascade, 4 rows read 151 to 154 keys. With cascade, the first 128 keys (a
  // whole number of KV tiles) are read once.
  EXPECT_NEAR(decision.rule.flat_us, 3 * 0.610, 1e-6);
  EXPECT_NEAR(decision.rule.cascade_us, 3 * (0.128 + 0.098 + 0.05 + 0.04), 1e-6);
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kUse), 1);
}

TEST_F(StepCascadeTest, JoinsLeavesAndMissingRowsChangeThePrefix) {
  for (int slot = 0; slot < 4; ++slot) Join(slot, 200, 10);
  EXPECT_EQ(Step({0, 1, 2, 3}).common_prefix_len, 160);
  Join(4, 200, 6);
  EXPECT_EQ(Step({0, 1, 2, 3, 4}).common_prefix_len, 96);
  EXPECT_EQ(Step({0, 1, 2, 3}).common_prefix_len, 160);
  Leave(4);
  Join(4, 200, 0);  // another prompt
  const StepCascade::Decision apart = Step({0, 1, 2, 3, 4});
  EXPECT_EQ(apart.rule.reason, CascadeReason::kNoPrefix);
  EXPECT_EQ(apart.common_prefix_len, 0);
  EXPECT_EQ(Step({3, 2, 1}).common_prefix_len, 160);
}

TEST_F(StepCascadeTest, APrefixEndsBeforeTheRowsOwnQueries) {
  // As after a fork: all blocks are the same.
  Join(0, 129, 99);
  Join(1, 128, 99);
  Join(2, 127, 99);
  EXPECT_EQ(Step({0, 1}).common_prefix_len, 128);
  EXPECT_EQ(Step({0, 1, 2}).common_prefix_len, 112);
}

TEST_F(StepCascadeTest, DecisionsAgainstCascadeHaveAReason) {
  for (int slot = 0; slot < 3; ++slot) Join(slot, 200, 12);
  Join(3, 200, 3);
  Join(4, 200, 4);
  EXPECT_EQ(Step({}).rule.reason, CascadeReason::kFewRows);
  EXPECT_EQ(Step({2}).rule.reason, CascadeReason::kFewRows);
  EXPECT_EQ(Step({0, 1}, /*num_queries=*/2).rule.reason, CascadeReason::kManyQueries);
  EXPECT_EQ(Step({0, 3}).rule.reason, CascadeReason::kNoPrefix);  // 48 keys: less than a KV tile
  const StepCascade::Decision two = Step({0, 4});                 // rereading 64 keys takes 64 ns
  EXPECT_THAT(ToString(two.rule), HasSubstr("flat: not quicker"));
  EXPECT_EQ(two.common_prefix_len, 0);
  EXPECT_EQ(Step({0, 1, 2}).rule.reason, CascadeReason::kUse);
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kFewRows), 1);  // the empty step does not count
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kManyQueries), 1);
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kNoPrefix), 1);
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kNotQuicker), 1);
  EXPECT_EQ(cascade_.num_steps(CascadeReason::kUse), 1);
}

TEST_F(StepCascadeTest, MinRowsAssumesTheLongestPrefix) {
  EXPECT_EQ(cascade_.min_rows(), 2);  // rereading 960 keys takes 0.96 us
  StepCascadeOptions options = options_;
  options.costs.prefix_us = 3;  // 3.04 us: faster with 5 rows or more
  EXPECT_EQ(StepCascade(options).min_rows(), 5);
  options.max_seq_len = 64;  // less than one KV tile before the last token
  EXPECT_EQ(StepCascade(options).min_rows(), std::nullopt);
  options.max_seq_len = 512;
  EXPECT_EQ(StepCascade(options).min_rows(), std::nullopt);  // 7 x 0.448 us is not enough
}

class TwoGroupsTest : public StepCascadeTest {
 protected:
  TwoGroupsTest() : StepCascadeTest({0, 2}, 3) {}
};

TEST_F(TwoGroupsTest, AllGroupsMustShareThePrefix) {
  for (int slot = 0; slot < 4; ++slot) {
    Join(slot, 200, 12);
    Join(slot, 200, 0, /*group=*/1);  // for example the group of a window
    Join(slot, 200, 8, /*group=*/2);
  }
  EXPECT_EQ(Step({0, 1, 2, 3}).common_prefix_len, 128);
}

}  // namespace
}  // namespace reprise
