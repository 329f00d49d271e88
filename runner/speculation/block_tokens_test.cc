#include "reprise/runner/speculation/block_tokens.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 6;
constexpr int kBlockSize = 4;

constexpr KvGroupSpec kFull = {.retention = KvRetention::kFull};
constexpr KvGroupSpec kWindow = {.retention = KvRetention::kSlidingWindow, .span = 8};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

// Writes tokens as refill and verification do.
void Keep(const BlockTokens& tokens, const std::vector<std::pair<int64_t, int32_t>>& kept) {
  for (const auto& [place, token] : kept) tokens.places().Keep(place, token);
}

BlockTokens Tokens(const std::vector<KvGroupSpec>& groups) {
  auto tokens = BlockTokens::Allocate(kNumBlocks, kBlockSize, groups, at::kCPU);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *std::move(tokens);
}

// Two slots of up to three blocks in each of two groups, with histories of zeros.
class TwoSlots {
 public:
  TwoSlots()
      : tables_(2 * 2 * 3),
        histories_(2 * kHistoryLen),
        state_({.block_table = tables_.data(),
                .block_table_stride = 3,
                .block_table_group_stride = 2 * 3,
                .history = {.tokens = histories_.data(), .stride = kHistoryLen},
                .num_slots = 2,
                .max_blocks = 3,
                .num_groups = 2}) {}

  const SlotState& state() const { return state_; }
  std::vector<int32_t> History(int32_t slot, int64_t count) const {
    const int32_t* const row = state_.history.row(slot);
    return {row, row + count};
  }

 private:
  static constexpr int kHistoryLen = 12;

  std::vector<int32_t> tables_;
  std::vector<int32_t> histories_;
  SlotState state_;
};

TEST(BlockTokensTest, PrefersAGroupOfFullAttention) {
  EXPECT_EQ(Tokens({kFull}).group(), 0);
  EXPECT_EQ(Tokens({kWindow, kCross, kFull}).group(), 2);
  EXPECT_EQ(Tokens({kCross, kWindow}).group(), 1);
}

TEST(BlockTokensTest, AJoinedSlotHasTheTokensOfItsBlocks) {
  const BlockTokens tokens = Tokens({kWindow, kFull});
  const TwoSlots slots;
  // Writes block 4, half of block 2, and two tokens at places outside the storage, which must not
  // be kept.
  Keep(tokens, {{16, 10}, {17, 11}, {-1, 99}, {18, 12}, {19, 13}, {8, 14}, {24, 98}, {9, 15}});
  EXPECT_EQ(tokens.places().group, 1);
  int32_t* const table = slots.state().table_row(/*group=*/1, /*slot=*/1);
  table[0] = 4;
  table[1] = 2;
  ASSERT_TRUE(tokens.Recall(slots.state(), {.slot = SlotId(1), .seq_len = 6}).ok());
  EXPECT_EQ(slots.History(1, 7), std::vector<int32_t>({10, 11, 12, 13, 14, 15, 0}));
  EXPECT_EQ(slots.History(0, 6), std::vector<int32_t>(6, 0));
}

TEST(BlockTokensTest, UnwrittenPositionsHoldMinusOne) {
  const BlockTokens tokens = Tokens({kFull});
  const TwoSlots slots;
  Keep(tokens, {{4, 7}, {-1, 9}});
  slots.state().table_row(0, 0)[0] = 1;
  ASSERT_TRUE(tokens.Recall(slots.state(), {.slot = SlotId(0), .seq_len = 3}).ok());
  EXPECT_EQ(slots.History(0, 3), std::vector<int32_t>({7, -1, -1}));
  EXPECT_EQ(tokens.blocks().sizes(), at::IntArrayRef({kNumBlocks, kBlockSize}));
  EXPECT_FALSE(tokens.blocks().eq(9).any().item<bool>());
}

// A sequence that is swapped out and returns in other blocks and another slot.
TEST(BlockTokensTest, TokensMoveWithTheirBlocks) {
  const BlockTokens tokens = Tokens({kWindow, kFull});
  const TwoSlots slots;
  for (int i = 0; i < kBlockSize; ++i) Keep(tokens, {{16 + i, 20 + i}, {8 + i, 24 + i}});
  at::Tensor blocks = tokens.blocks();
  blocks[3].copy_(blocks[4]);
  blocks[5].copy_(blocks[2]);
  int32_t* const joined = slots.state().table_row(/*group=*/1, /*slot=*/0);
  joined[0] = 3;
  joined[1] = 5;
  ASSERT_TRUE(tokens.Recall(slots.state(), {.slot = SlotId(0), .seq_len = 7}).ok());
  EXPECT_EQ(slots.History(0, 8), std::vector<int32_t>({20, 21, 22, 23, 24, 25, 26, 0}));
}

TEST(BlockTokensTest, RecallWithoutKeysKeepsTheHistory) {
  const BlockTokens tokens = Tokens({kFull});
  const TwoSlots slots;
  std::iota(slots.state().history.row(0), slots.state().history.row(0) + 4, 1);
  ASSERT_TRUE(tokens.Recall(slots.state(), {.slot = SlotId(0), .seq_len = 0}).ok());
  EXPECT_EQ(slots.History(0, 4), std::vector<int32_t>({1, 2, 3, 4}));
}

}  // namespace
}  // namespace reprise
