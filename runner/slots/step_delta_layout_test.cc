#include "reprise/runner/slots/step_delta_layout.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr StepDeltaCapacity kCapacity = {
    .num_slots = 3, .max_updates = 5, .max_rows = 2, .max_tokens = 7};

struct alignas(256) Line {
  std::byte bytes[256];
};

class StepDeltaLayoutTest : public testing::Test {
 protected:
  std::byte* base() { return memory_.data()->bytes; }

  std::vector<Line> memory_ = std::vector<Line>(StepDeltaBytes(kCapacity) / sizeof(Line));
};

TEST_F(StepDeltaLayoutTest, ArraysOfFullCapacityDoNotOverlap) {
  const StepDelta delta = StepDeltaAt(kCapacity, base());
  const std::byte* previous_end = base();
  const auto follows = [&](const auto* array, int64_t count) {
    const auto* begin = reinterpret_cast<const std::byte*>(array);
    EXPECT_GE(begin, previous_end);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array) % 256, 0u);
    previous_end = reinterpret_cast<const std::byte*>(array + count);
  };
  follows(delta.counts, 1);
  follows(delta.rows, kCapacity.max_rows);
  follows(delta.leaves, kCapacity.num_slots);
  follows(delta.joins, kCapacity.num_slots);
  follows(delta.updates, kCapacity.max_updates);
  EXPECT_EQ(delta.max_updates, kCapacity.max_updates);
  follows(delta.host_tokens, kCapacity.max_tokens);
  follows(delta.scores, kCapacity.max_rows);
  EXPECT_LE(previous_end, base() + StepDeltaBytes(kCapacity));
}

TEST_F(StepDeltaLayoutTest, TheSameOffsetsHoldAtAnyBase) {
  // The device maps the ring slot at another address: only the base may differ.
  std::vector<Line> other(memory_.size());
  const StepDelta here = StepDeltaAt(kCapacity, base());
  const StepDelta there = StepDeltaAt(kCapacity, other.data()->bytes);
  EXPECT_EQ(reinterpret_cast<std::byte*>(here.host_tokens) - base(),
            reinterpret_cast<std::byte*>(there.host_tokens) - other.data()->bytes);
}

TEST_F(StepDeltaLayoutTest, WritesEveryPartOfABatch) {
  const SlotId leaves[] = {SlotId(2)};
  const SlotJoin joins[] = {{.slot = SlotId(1), .seq_len = 4, .prompt_len = 8, .sample_index = 9}};
  const BlockTableUpdate updates[] = {
      {.slot = SlotId(1), .column = 0, .block = BlockId(3)},
      {.slot = SlotId(1), .column = 1, .block = BlockId(2), .group = 3}};
  const int32_t prompt[] = {11, 12, 13};
  const ScheduledRow rows[] = {{.slot = SlotId(0)},
                               {.slot = SlotId(1), .tokens = prompt, .output = RowOutput::kNone}};
  const StepDelta delta = StepDeltaAt(kCapacity, base());
  WriteStepDelta({.leaves = leaves, .joins = joins, .updates = updates, .rows = rows},
                 /*common_prefix_len=*/48, kCapacity, delta);

  EXPECT_EQ(delta.counts->num_leaves, 1);
  EXPECT_EQ(delta.counts->num_joins, 1);
  EXPECT_EQ(delta.counts->num_updates, 2);
  EXPECT_EQ(delta.counts->num_rows, 2);
  EXPECT_EQ(delta.counts->num_tokens, 4);       // 1 token of the slot + 3 of the host
  EXPECT_EQ(delta.counts->num_host_tokens, 3);  // without the slot's last token
  EXPECT_EQ(delta.counts->common_prefix_len, 48);
  EXPECT_EQ(delta.leaves[0], 2);
  EXPECT_EQ(delta.joins[0].slot, 1);
  EXPECT_EQ(delta.joins[0].seq_len, 4);
  EXPECT_EQ(delta.joins[0].sample_index, 9);
  EXPECT_EQ(delta.updates[0].block, 3);
  EXPECT_EQ(delta.updates[0].group, 0);
  EXPECT_EQ(delta.updates[1].slot, 1);
  EXPECT_EQ(delta.updates[1].column, 1);
  EXPECT_EQ(delta.updates[1].block, 2);
  EXPECT_EQ(delta.updates[1].group, 3);
  EXPECT_EQ(delta.rows[0].first_host_token, -1);
  EXPECT_EQ(delta.rows[0].query_len, 1);
  EXPECT_EQ(delta.rows[0].samples, 1);
  EXPECT_EQ(delta.rows[1].first_host_token, 0);
  EXPECT_EQ(delta.rows[1].query_len, 3);
  EXPECT_EQ(delta.rows[1].samples, 0);
  EXPECT_THAT(std::vector<int32_t>(delta.host_tokens, delta.host_tokens + 3),
              ElementsAre(11, 12, 13));
}

TEST_F(StepDeltaLayoutTest, WritesScoresOfAllRowsIfOneHasAny) {
  const StepDelta delta = StepDeltaAt(kCapacity, base());
  constexpr StepRowScore kOld = {.all_logits = 7, .next_token = 7};
  delta.scores[0] = delta.scores[1] = kOld;
  const int32_t prompt[] = {11, 12, 13};
  ScheduledRow rows[] = {{.slot = SlotId(0), .logits = RowLogits::kAll},  // has one token
                         {.slot = SlotId(1), .tokens = prompt, .output = RowOutput::kNone}};
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/0, kCapacity, delta);
  EXPECT_EQ(delta.scores[0].all_logits, 7);  // not written
  EXPECT_EQ(delta.scores[1].next_token, 7);

  rows[1].logits = RowLogits::kAll;
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/0, kCapacity, delta);
  EXPECT_EQ(delta.scores[0].next_token, -1);
  EXPECT_EQ(delta.scores[1].all_logits, 1);
  EXPECT_EQ(delta.scores[1].next_token, -1);

  rows[1].logits = RowLogits::kLast;
  rows[1].next_token = 5;
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/0, kCapacity, delta);
  EXPECT_EQ(delta.scores[1].all_logits, 0);
  EXPECT_EQ(delta.scores[1].next_token, 5);
}

TEST(StepDeltaPositionsTest, PositionsFollowTheHostTokens) {
  constexpr StepDeltaCapacity kThreeDims = {
      .num_slots = 3, .max_updates = 5, .max_rows = 3, .max_tokens = 7, .num_position_dims = 3};
  std::vector<Line> memory(StepDeltaBytes(kThreeDims) / sizeof(Line));
  const StepDelta delta = StepDeltaAt(kThreeDims, memory.data()->bytes);
  ASSERT_NE(delta.host_positions, nullptr);
  EXPECT_LE(reinterpret_cast<const std::byte*>(delta.host_positions + 3 * 7),
            memory.data()->bytes + StepDeltaBytes(kThreeDims));
  EXPECT_EQ(StepDeltaAt(kCapacity, memory.data()->bytes).host_positions, nullptr);

  const int32_t prompt[] = {11, 12, 13};
  // Positions of two tokens; the stride between dimensions is 3.
  const int32_t positions[] = {5, 6, 0, 7, 8, 0, 9, 10};
  const ScheduledRow rows[] = {
      {.slot = SlotId(0), .tokens = absl::MakeConstSpan(prompt, 2)},
      {.slot = SlotId(1)},
      {.slot = SlotId(2),
       .tokens = prompt,
       .positions = {.data = positions, .dim_stride = 3, .num_dims = 3, .count = 2}}};
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/0, kThreeDims, delta);
  EXPECT_EQ(delta.counts->has_positions, 1);
  const auto of_dim = [&](int dim) {
    return std::vector<int32_t>(delta.host_positions + dim * 7, delta.host_positions + dim * 7 + 5);
  };
  EXPECT_THAT(of_dim(0), ElementsAre(-1, -1, 5, 6, -1));
  EXPECT_THAT(of_dim(1), ElementsAre(-1, -1, 7, 8, -1));
  EXPECT_THAT(of_dim(2), ElementsAre(-1, -1, 9, 10, -1));

  WriteStepDelta({.rows = absl::MakeConstSpan(rows, 2)}, /*common_prefix_len=*/0, kThreeDims,
                 delta);
  EXPECT_EQ(delta.counts->has_positions, 0);
}

TEST(StepDeltaParentsTest, ParentsFollowTheHostDrafts) {
  StepDeltaCapacity capacity = kCapacity;
  capacity.max_rows = 3;
  capacity.has_trees = true;
  std::vector<Line> memory(StepDeltaBytes(capacity) / sizeof(Line));
  EXPECT_GT(memory.size(), StepDeltaBytes(kCapacity) / sizeof(Line));
  const StepDelta delta = StepDeltaAt(capacity, memory.data()->bytes);
  const int32_t prompt[] = {5, 6};
  const int32_t drafts[] = {7, 8, 9};
  const int32_t parents[] = {0, 0, 2};
  const int32_t chain[] = {3, 4};
  const ScheduledRow rows[] = {
      {.slot = SlotId(0), .tokens = prompt},
      {.slot = SlotId(1), .drafts = drafts, .parents = parents},
      {.slot = SlotId(2), .drafts = chain},
  };
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/0, capacity, delta);
  EXPECT_EQ(delta.rows[1].first_host_token, 2);
  EXPECT_THAT(std::vector<int32_t>(delta.host_parents + 2, delta.host_parents + 7),
              ElementsAre(0, 0, 2, 0, 1));
  EXPECT_EQ(StepDeltaAt(kCapacity, memory.data()->bytes).host_parents, nullptr);
}

TEST_F(StepDeltaLayoutTest, AnEmptyBatchClearsTheCountsOfAnEarlierOne) {
  const ScheduledRow rows[] = {{.slot = SlotId(0)}};
  const StepDelta delta = StepDeltaAt(kCapacity, base());
  WriteStepDelta({.rows = rows}, /*common_prefix_len=*/48, kCapacity, delta);
  WriteStepDelta({}, /*common_prefix_len=*/0, kCapacity, delta);
  EXPECT_EQ(delta.counts->num_rows, 0);
  EXPECT_EQ(delta.counts->num_tokens, 0);
  EXPECT_EQ(delta.counts->common_prefix_len, 0);
}

}  // namespace
}  // namespace reprise
