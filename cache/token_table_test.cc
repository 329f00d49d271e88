#include "cache/token_table.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kGarbage = -12345;

// 2 requests; block_size 4. Request 0: 6 tokens in blocks 7 and 2. Request 1: an encoder's 4 in
// block 5, then a decoder's 3 in block 9.
const std::vector<int32_t> kSlots = {28, 29, 30, 31, 8,  9,  kGarbage, kGarbage,  //
                                     20, 21, 22, 23, 36, 37, 38};
const TokenTable kTokens = {.slots = kSlots, .row_stride = 8, .max_tokens = 7, .num_requests = 2};

struct Blocks {
  std::vector<int32_t> entries = std::vector<int32_t>(9, kGarbage);
  std::vector<int32_t> seq_lens = std::vector<int32_t>(3, kGarbage);

  MutablePaddedBlockTable view() {
    return {absl::MakeSpan(entries), /*row_stride=*/3, /*max_blocks=*/2, absl::MakeSpan(seq_lens)};
  }
};

TEST(TokenTableTest, BlocksAreReadInStrides) {
  Blocks blocks;
  const std::vector<int32_t> requests = {1, 0, 1}, lens = {3, 6, 4}, starts = {4, 0, 0};
  ASSERT_TRUE(TokensToBlocks(kTokens, {requests, lens, starts}, 4, blocks.view()).ok());
  EXPECT_THAT(blocks.entries, ElementsAre(9, 0, kGarbage, 7, 2, kGarbage, 5, 0, kGarbage));
  EXPECT_THAT(blocks.seq_lens, ElementsAre(3, 6, 4));
}

TEST(TokenTableTest, BlocksOfOneTokenAreTheSlots) {
  Blocks blocks;
  const std::vector<int32_t> requests = {0, 0}, lens = {2, 0};
  ASSERT_TRUE(TokensToBlocks(kTokens, {requests, lens, {}}, 1, blocks.view()).ok());
  EXPECT_THAT(blocks.entries,
              ElementsAre(28, 29, kGarbage, 0, 0, kGarbage, kGarbage, kGarbage, kGarbage));
}

TEST(TokenTableTest, SlotsAreWrittenTokenByToken) {
  const std::vector<int32_t> entries = {7, 2, kGarbage, kGarbage}, seq_lens = {6, 0};
  std::vector<int32_t> slots(14, kGarbage);
  ASSERT_TRUE(BlocksToTokens({entries, 2, 2, seq_lens}, 4, absl::MakeSpan(slots), 7, 7).ok());
  EXPECT_THAT(slots, ElementsAre(28, 29, 30, 31, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(TokenTableTest, ThereAndBackAgain) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const int block_size = 1 + static_cast<int>(random() % 5), max_blocks = 6;
    std::vector<int32_t> entries(4 * max_blocks), lens(4), requests = {0, 1, 2, 3};
    for (int32_t& entry : entries) entry = static_cast<int32_t>(1 + random() % 50);
    for (int32_t& len : lens) len = static_cast<int32_t>(random() % (max_blocks * block_size + 1));
    const int max_tokens = max_blocks * block_size;
    std::vector<int32_t> slots(4 * max_tokens, kGarbage), back(4 * max_blocks, kGarbage),
        seq_lens(4, kGarbage);
    ASSERT_TRUE(BlocksToTokens({entries, max_blocks, max_blocks, lens}, block_size,
                               absl::MakeSpan(slots), max_tokens, max_tokens)
                    .ok());
    for (int row = 0; row < 4; ++row) {  // what is behind a row's tokens does not matter
      std::fill(slots.begin() + row * max_tokens + lens[row],
                slots.begin() + (row + 1) * max_tokens, kGarbage);
    }
    const TokenTable tokens = {slots, max_tokens, max_tokens, 4};
    ASSERT_TRUE(
        TokensToBlocks(tokens, {requests, lens, {}}, block_size,
                       {absl::MakeSpan(back), max_blocks, max_blocks, absl::MakeSpan(seq_lens)})
            .ok());
    EXPECT_EQ(seq_lens, lens);
    for (int row = 0; row < 4; ++row) {
      for (int column = 0; column < max_blocks; ++column) {
        const int cell = row * max_blocks + column;
        ASSERT_EQ(back[cell], column * block_size < lens[row] ? entries[cell] : 0);
      }
    }
  }
}

TEST(TokenTableTest, SlotsThatAreNoBlocksAreRefusedByRowAndToken) {
  Blocks blocks;
  const auto message = [&](const std::vector<int32_t>& slots) {
    const TokenTable tokens = {.slots = slots, .row_stride = 4, .max_tokens = 4, .num_requests = 1};
    const std::vector<int32_t> requests = {0}, lens = {4};
    const absl::Status status = TokensToBlocks(tokens, {requests, lens, {}}, 4, blocks.view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({28, 29, 31, 30}),
              HasSubstr("tokens of a block of row 0 must stand at consecutive slots: expected slot "
                        "30 at token 2, got 31"));
  EXPECT_THAT(message({29, 30, 31, 32}), HasSubstr("expected so at token 0, got slot 29"));
  EXPECT_THAT(message({-4, -3, -2, -1}), HasSubstr("expected so at token 0, got slot -4"));
  EXPECT_THAT(blocks.entries, Each(kGarbage));
}

TEST(TokenTableTest, WhatDoesNotFitIsNamedAndNothingIsWritten) {
  Blocks blocks;
  const auto message = [&](std::vector<int32_t> requests, std::vector<int32_t> lens,
                           std::vector<int32_t> starts, int block_size = 4) {
    absl::Status status =
        TokensToBlocks(kTokens, {requests, lens, starts}, block_size, blocks.view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({0}, {4}, {}, 0), HasSubstr("block_size must be positive"));
  EXPECT_THAT(message({0, 2}, {4, 4}, {}),
              HasSubstr("requests of row 1 must be one of the table: expected 0 to 1, got 2"));
  EXPECT_THAT(message({0, 1}, {6, 8}, {}),
              HasSubstr("tokens of row 1 must be within the table: expected 0 to 7, got 0 to 8"));
  EXPECT_THAT(message({0}, {-1}, {}), HasSubstr("got 0 to -1"));
  EXPECT_THAT(message({0}, {3}, {5}), HasSubstr("got 5 to 8"));
  EXPECT_THAT(message({0}, {3}, {}, 1), HasSubstr("row 0 must fit the block table"));
  EXPECT_THAT(message({1}, {4}, {1}),
              HasSubstr("blocks of row 0 must begin at multiples of block_size 4: expected so at "
                        "token 1, got slot 21"));
  EXPECT_THAT(message({0}, {3, 3}, {}), HasSubstr("requests and starts"));
  EXPECT_THAT(message({0, 0, 0, 0}, {0, 0, 0, 0}, {}), HasSubstr("entries is too small"));
  EXPECT_THAT(blocks.entries, Each(kGarbage));
  EXPECT_THAT(blocks.seq_lens, Each(kGarbage));

  std::vector<int32_t> slots(8, kGarbage);
  const std::vector<int32_t> entries = {7, 2}, lens = {9};
  EXPECT_THAT(
      std::string(BlocksToTokens({entries, 2, 2, lens}, 4, absl::MakeSpan(slots), 8, 8).message()),
      HasSubstr("seq_lens of row 0 must fit both tables: expected 0 to 8, got 9"));
  EXPECT_FALSE(BlocksToTokens({entries, 2, 2, lens}, 4, absl::MakeSpan(slots), 9, 9).ok());
  EXPECT_THAT(slots, Each(kGarbage));
}

}  // namespace
}  // namespace reprise
