#include "runner/block_tokens.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/ops/tensor.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 6;
constexpr int kBlockSize = 4;

constexpr KvGroupSpec kFull = {.retention = KvRetention::kFull};
constexpr KvGroupSpec kWindow = {.retention = KvRetention::kSlidingWindow, .span = 8};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

at::Tensor Ints(const std::vector<int32_t>& values) { return at::tensor(values, at::kInt); }
at::Tensor Slots(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

BlockTokens Tokens(const std::vector<KvGroupSpec>& groups) {
  auto tokens = BlockTokens::Allocate(kNumBlocks, kBlockSize, groups, at::kCPU);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *std::move(tokens);
}

// Two slots of up to three blocks in each of two groups, with histories.
std::unique_ptr<StepMemory> Memory() {
  auto memory = StepMemory::Allocate({.max_rows = 2,
                                      .max_tokens = 8,
                                      .max_blocks = 3,
                                      .num_groups = 2,
                                      .max_earlier_logits = 4,
                                      .max_drafts = 2,
                                      .history_len = 12,
                                      .vocab_size = 5},
                                     at::kCPU);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

std::vector<int32_t> History(const StepMemory& memory, int32_t slot, int64_t count) {
  const int32_t* const row = memory.slots().history.row(slot);
  return {row, row + count};
}

TEST(BlockTokensTest, FollowsTheGroupThatKeepsTheMost) {
  EXPECT_EQ(Tokens({kFull}).group(), 0);
  EXPECT_EQ(Tokens({kWindow, kCross, kFull}).group(), 2);
  EXPECT_EQ(Tokens({kCross, kWindow}).group(), 1);
}

TEST(BlockTokensTest, AJoinedSlotHasTheTokensOfItsBlocks) {
  const BlockTokens tokens = Tokens({kWindow, kFull});
  const std::unique_ptr<StepMemory> memory = Memory();
  // Block 4, then half of block 2, among tokens that are not kept.
  ASSERT_TRUE(
      tokens.Keep(Slots({16, 17, -1, 18, 19, 8, -1, 9}), Ints({10, 11, 99, 12, 13, 14, 98, 15}))
          .ok());
  int32_t* const table = memory->slots().table_row(/*group=*/1, /*slot=*/1);
  table[0] = 4;
  table[1] = 2;
  ASSERT_TRUE(tokens.Recall(*memory, {{.slot = 1, .seq_len = 6}}).ok());
  EXPECT_EQ(History(*memory, 1, 7), std::vector<int32_t>({10, 11, 12, 13, 14, 15, 0}));
  EXPECT_EQ(History(*memory, 0, 6), std::vector<int32_t>(6, 0));
}

TEST(BlockTokensTest, WhatWasNeverWrittenIsNoToken) {
  const BlockTokens tokens = Tokens({kFull});
  const std::unique_ptr<StepMemory> memory = Memory();
  ASSERT_TRUE(tokens.Keep(Slots({4, -1}), Ints({7, 9})).ok());
  memory->slots().table_row(0, 0)[0] = 1;
  ASSERT_TRUE(tokens.Recall(*memory, {{.slot = 0, .seq_len = 3}}).ok());
  EXPECT_EQ(History(*memory, 0, 3), std::vector<int32_t>({7, -1, -1}));
  EXPECT_EQ(tokens.blocks().sizes(), at::IntArrayRef({kNumBlocks, kBlockSize}));
  EXPECT_FALSE(tokens.blocks().eq(9).any().item<bool>());
}

TEST(BlockTokensTest, LaterTokensTakeThePlaceOfRejectedOnes) {
  const BlockTokens tokens = Tokens({kFull});
  const std::unique_ptr<StepMemory> memory = Memory();
  ASSERT_TRUE(tokens.Keep(Slots({8, 9, 10}), Ints({1, 2, 3})).ok());
  ASSERT_TRUE(tokens.Keep(Slots({9, 10}), Ints({4, 5})).ok());
  memory->slots().table_row(0, 1)[0] = 2;
  ASSERT_TRUE(tokens.Recall(*memory, {{.slot = 1, .seq_len = 3}}).ok());
  EXPECT_EQ(History(*memory, 1, 3), std::vector<int32_t>({1, 4, 5}));
}

TEST(BlockTokensTest, ASlotThatJoinsWithoutKeysIsLeftAsItIs) {
  const BlockTokens tokens = Tokens({kFull});
  const std::unique_ptr<StepMemory> memory = Memory();
  std::iota(memory->slots().history.row(0), memory->slots().history.row(0) + 4, 1);
  ASSERT_TRUE(tokens.Recall(*memory, {{.slot = 0}}).ok());
  EXPECT_EQ(History(*memory, 0, 4), std::vector<int32_t>({1, 2, 3, 4}));
}

TEST(BlockTokensTest, ALayerOfOneElementStandsForThem) {
  const BlockTokens tokens = Tokens({kFull});
  const KvLayer layer = tokens.layer();
  EXPECT_EQ(layer.k.data, tokens.blocks().data_ptr());
  EXPECT_EQ(layer.k.block_stride, kBlockSize);
  EXPECT_EQ(layer.num_blocks, kNumBlocks);
  EXPECT_EQ(layer.block_size, kBlockSize);
  EXPECT_EQ(SizeOf(layer.dtype), sizeof(int32_t));
}

}  // namespace
}  // namespace reprise
