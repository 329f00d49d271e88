#include "reprise/attention/speculation/tree_mask.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/speculation/tree_check.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<int32_t> kTree = {-1, 0, 0, 1, 2};

bool Bit(const std::vector<uint8_t>& mask, int64_t bit) { return mask[bit / 8] >> bit % 8 & 1; }

TEST(TreeMaskTest, MatchesTheExampleOfTheHeader) {
  std::vector<uint8_t> mask(6, 0xee);
  ASSERT_EQ(TreeMaskBytes(5, 3), 5);
  ASSERT_EQ(WriteTreeMask(kTree, 3, absl::MakeSpan(mask)), absl::OkStatus());
  EXPECT_THAT(mask, ElementsAre(0x0f, 0x1f, 0x2f, 0x5f, 0xaf, 0xee));
  EXPECT_THAT(*TreeDepths(kTree), ElementsAre(0, 1, 1, 2, 2));
}

TEST(TreeMaskTest, UnusedBitsAreZero) {
  std::vector<uint8_t> mask(TreeMaskBytes(5, 0), 0xff);
  ASSERT_EQ(mask.size(), 4u);  // 25 bits
  ASSERT_EQ(WriteTreeMask(kTree, 0, absl::MakeSpan(mask)), absl::OkStatus());
  // Bits from the lowest: 10000 11000 10100 11010 10101.
  EXPECT_THAT(mask, ElementsAre(0x61, 0x94, 0x55, 0x01));
}

// For up to 64 nodes, the tail mask has the same bits.
TEST(TreeMaskTest, SmallTreesMatchTheirTailMasks) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const int n = random.Int(1, 64), prefix = random.Int(0, 70);
    const std::vector<int32_t> parents = DrawTree(random, n);
    std::vector<uint8_t> mask(TreeMaskBytes(n, prefix), 0xff);
    ASSERT_EQ(WriteTreeMask(parents, prefix, absl::MakeSpan(mask)), absl::OkStatus());
    const std::vector<uint64_t> tails = *TreeMasks(parents);
    for (int i = 0; i < n; ++i) {
      for (int l = 0; l < prefix + n; ++l) {
        const bool is_seen = l < prefix || (tails[i] >> (l - prefix) & 1) != 0;
        ASSERT_EQ(Bit(mask, int64_t{i} * (prefix + n) + l), is_seen) << "node " << i << ", " << l;
      }
    }
  }
}

TEST(TreeMaskTest, NodesOfLargeTreesAttendToAncestorsOnly) {
  Random random(8);
  for (int round = 0; round < 50; ++round) {
    const int n = random.Int(65, 300), prefix = random.Int(0, 200);
    const std::vector<int32_t> parents = DrawTree(random, n);
    std::vector<uint8_t> mask(TreeMaskBytes(n, prefix), 0xff);
    ASSERT_EQ(WriteTreeMask(parents, prefix, absl::MakeSpan(mask)), absl::OkStatus());
    const std::vector<int32_t> depths = *TreeDepths(parents);
    for (int i = 0; i < n; ++i) {
      std::vector<bool> seen(prefix + n, false);
      std::fill_n(seen.begin(), prefix, true);
      int num_ancestors = 0;
      for (int at = i; at >= 0; at = parents[at]) seen[prefix + at] = ++num_ancestors > 0;
      ASSERT_EQ(depths[i], num_ancestors - 1);
      for (int l = 0; l < prefix + n; ++l) {
        ASSERT_EQ(Bit(mask, int64_t{i} * (prefix + n) + l), seen[l]) << "node " << i << ", " << l;
      }
    }
  }
}

TEST(TreeMaskTest, RejectsInvalidTreesAndSmallBuffersWithoutWriting) {
  std::vector<uint8_t> mask(5, 0xee);
  const auto message = [&](const std::vector<int32_t>& parents, int prefix) {
    const absl::Status status = WriteTreeMask(parents, prefix, absl::MakeSpan(mask));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({}, 3), HasSubstr("num_nodes: expected at least 1, got 0"));
  EXPECT_THAT(message({-1, 2, 1}, 3), HasSubstr("a cycle through nodes 1, 2"));
  EXPECT_THAT(message(kTree, -1), HasSubstr("prefix_len: expected at least 0, got -1"));
  EXPECT_THAT(message(kTree, 4), HasSubstr("mask.size: expected at least 6, got 5"));
  EXPECT_THAT(mask, ElementsAre(0xee, 0xee, 0xee, 0xee, 0xee));
  EXPECT_FALSE(TreeDepths({}).ok());
}

}  // namespace
}  // namespace reprise
