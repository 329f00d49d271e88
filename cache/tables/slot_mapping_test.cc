#include "reprise/cache/tables/slot_mapping.h"

#include <climits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Slots(std::vector<int32_t> row, int block_size, int64_t first,
                           int num_tokens) {
  std::vector<int64_t> slots(num_tokens, -99);
  EXPECT_TRUE(FillSlotMapping(row, block_size, first, absl::MakeSpan(slots)).ok());
  return slots;
}

TEST(SlotMappingTest, CrossesBlockBoundaries) {
  EXPECT_THAT(Slots({7, 2}, 4, 3, 3), ElementsAre(7 * 4 + 3, 2 * 4, 2 * 4 + 1));
  EXPECT_THAT(Slots({7, 2}, 4, 0, 8), ElementsAre(28, 29, 30, 31, 8, 9, 10, 11));
}

TEST(SlotMappingTest, BlockSizeOneIsTheTableItself) {
  EXPECT_THAT(Slots({5, 3, 9}, 1, 1, 2), ElementsAre(3, 9));
}

TEST(SlotMappingTest, NullBlocksAreNotWritten) {
  EXPECT_THAT(Slots({0, 2}, 2, 0, 4), ElementsAre(kNoSlot, kNoSlot, 4, 5));
}

TEST(SlotMappingTest, SlotsMayExceedInt32) {
  EXPECT_THAT(Slots({INT_MAX}, 16, 15, 1), ElementsAre(int64_t{INT_MAX} * 16 + 15));
}

TEST(SlotMappingTest, ZeroTokensAreAllowedAtTheEndOfTheRow) {
  EXPECT_THAT(Slots({1}, 4, 4, 0), ElementsAre());
  EXPECT_THAT(Slots({}, 4, 0, 0), ElementsAre());
}

TEST(SlotMappingTest, RejectsTokensOutsideTheRowWithoutWriting) {
  std::vector<int64_t> slots(3, -99);
  const auto message = [&](std::vector<int32_t> row, int block_size, int64_t first) {
    absl::Status status = FillSlotMapping(row, block_size, first, absl::MakeSpan(slots));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(slots, Each(-99));
    return std::string(status.message());
  };
  EXPECT_THAT(message({7, 2}, 4, 6),
              HasSubstr("expected 3 tokens within [0, 8), got a start of 6"));
  EXPECT_THAT(message({7, 2}, 4, -1), HasSubstr("got a start of -1"));
  EXPECT_THAT(message({7, 2}, 4, INT64_MAX), HasSubstr("got a start of 9223372036854775807"));
  EXPECT_THAT(message({}, 4, 0), HasSubstr("within [0, 0)"));
  EXPECT_THAT(message({7, 2}, 0, 0), HasSubstr("block_size must be positive"));
  EXPECT_THAT(message({7, -2}, 2, 0), HasSubstr("at least 0 in column 1, got -2"));
}

TEST(SlotMappingTest, EntriesPastTheTokensAreNotRead) {
  EXPECT_THAT(Slots({-5, 3, -7}, 2, 2, 2), ElementsAre(6, 7));
}

}  // namespace
}  // namespace reprise
