#include "reprise/cache/group_retention.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kWindow4 = {.retention = KvRetention::kSlidingWindow, .span = 4};
constexpr KvGroupSpec kChunk6 = {.retention = KvRetention::kChunkedLocal, .span = 6};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

TEST(GroupRetentionTest, AFullGroupNeedsAllBlocks) {
  EXPECT_EQ(FirstNeededBlock(kFull, 1000, 2), 0);
  EXPECT_FALSE(LosesBlocks(kFull));
  EXPECT_EQ(FirstNeededBlock(kCross, 1000, 2), 0);
  EXPECT_FALSE(HoldsOwnTokens(kCross));
}

TEST(GroupRetentionTest, WindowNeedsTheBlocksOfItsLastSpanMinusOneTokens) {
  // The window holds tokens n - 3 .. n - 1, in blocks of 2.
  EXPECT_EQ(FirstNeededBlock(kWindow4, 3, 2), 0);  // from 0
  EXPECT_EQ(FirstNeededBlock(kWindow4, 4, 2), 0);  // from 1
  EXPECT_EQ(FirstNeededBlock(kWindow4, 5, 2), 1);  // from 2
  EXPECT_EQ(FirstNeededBlock(kWindow4, 8, 2), 2);  // from 5
  // A query with a window of one token attends only to itself.
  EXPECT_EQ(FirstNeededBlock({.retention = KvRetention::kSlidingWindow, .span = 1}, 8, 2), 4);
}

TEST(GroupRetentionTest, ChunkedGroupNeedsTheBlocksOfTheNextTokensChunk) {
  EXPECT_EQ(FirstNeededBlock(kChunk6, 5, 4), 0);
  EXPECT_EQ(FirstNeededBlock(kChunk6, 6, 4), 1);  // the chunk of 6 .. 11 begins within block 1
  EXPECT_EQ(FirstNeededBlock(kChunk6, 12, 4), 3);
}

TEST(GroupRetentionTest, OneTokenFewerThanTheShortestNeedsAnEarlierBlock) {
  for (const KvGroupSpec& group : {kWindow4, kChunk6}) {
    for (int block_size = 1; block_size < 9; ++block_size) {
      for (int first = 1; first < 20; ++first) {
        const int shortest = ShortestWithFirstBlock(group, first, block_size);
        EXPECT_GE(FirstNeededBlock(group, shortest, block_size), first);
        EXPECT_LT(FirstNeededBlock(group, shortest - 1, block_size), first);
      }
    }
  }
  EXPECT_EQ(ShortestWithFirstBlock(kFull, 0, 4), 0);
}

TEST(GroupRetentionTest, RejectsInvalidGroups) {
  const auto message = [](std::vector<KvGroupSpec> groups) {
    const absl::Status status = CheckGroups(groups);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({kFull, {.retention = KvRetention::kSlidingWindow}}),
              HasSubstr("span of group 1 must be positive: expected at least 1, got 0"));
  EXPECT_THAT(message({{.retention = KvRetention::kChunkedLocal, .span = -2}}), HasSubstr("-2"));
  EXPECT_THAT(message({{.retention = KvRetention::kFull, .span = 5}}),
              HasSubstr("span of group 0 must be 0 without a window or chunk"));
  EXPECT_THAT(message({{.retention = static_cast<KvRetention>(9)}}),
              HasSubstr("retention of group 0 is unknown: expected 0 to 3, got 9"));
  EXPECT_THAT(message({kCross}), HasSubstr("expected a group that is not kCross, got 1 cross groups"));
  EXPECT_THAT(message({}), HasSubstr("got 0 cross groups"));
  EXPECT_TRUE(CheckGroups(std::vector<KvGroupSpec>{kFull, kWindow4, kChunk6, kCross}).ok());
}

}  // namespace
}  // namespace reprise
