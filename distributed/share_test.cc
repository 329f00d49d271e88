#include "reprise/distributed/share.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::HasSubstr;

// Returns the shares of all ranks. Expects that each share begins where the previous one ends, and
// that they cover the dimension.
template <typename Function>
std::vector<Share> SharesOf(int64_t size, int world, const Function& share_of) {
  std::vector<Share> shares;
  int64_t next = 0;
  for (int rank = 0; rank < world; ++rank) {
    shares.push_back(share_of(size, Ranks{.rank = rank, .world = world}));
    EXPECT_EQ(shares.back().begin, next) << "rank " << rank << " of " << world << ", " << size;
    next = shares.back().end();
  }
  EXPECT_EQ(next, size) << world << " ranks";
  return shares;
}

TEST(ShareTest, CoversTheDimensionEvenly) {
  for (const int64_t size : {0, 1, 7, 10, 64, 1000, 50257}) {
    for (const int world : {1, 2, 3, 4, 7, 8}) {
      const std::vector<Share> shares =
          SharesOf(size, world, [](int64_t n, const Ranks& ranks) { return ShareOf(n, ranks); });
      for (const Share& share : shares) {
        EXPECT_GE(share.size, size / world);
        EXPECT_LE(share.size, (size + world - 1) / world);
      }
    }
  }
}

TEST(ShareTest, CutsAtUnits) {
  EXPECT_EQ(ShareOf(100, {.rank = 0, .world = 2}, 16), (Share{0, 48}));
  EXPECT_EQ(ShareOf(100, {.rank = 1, .world = 2}, 16), (Share{48, 52}));
  EXPECT_EQ(ShareOf(100, {.rank = 0, .world = 1}, 16), (Share{0, 100}));
}

TEST(ShareTest, AlignedSharesAreNotEmptyIfThereAreEnoughElements) {
  for (const int64_t size : {4, 5, 37, 96, 257, 4096, 50257, 151936}) {
    for (const int world : {1, 2, 3, 4}) {
      const std::vector<Share> shares = SharesOf(
          size, world, [](int64_t n, const Ranks& ranks) { return AlignedShareOf(n, ranks); });
      int64_t largest = 0;
      for (const Share& share : shares) {
        EXPECT_GT(share.size, 0) << size << " over " << world;
        largest = std::max(largest, share.size);
      }
      EXPECT_EQ(LargestAlignedShare(size, world), largest);
    }
  }
}

TEST(ShareTest, AlignedSharesUseTheLargestUnitThatServesEveryRank) {
  EXPECT_EQ(AlignedShareOf(50257, {.rank = 1, .world = 2}), (Share{25152, 25105}));
  EXPECT_EQ(AlignedShareOf(96, {.rank = 1, .world = 2}), (Share{64, 32}));
  EXPECT_EQ(AlignedShareOf(96, {.rank = 1, .world = 4}), (Share{24, 24}));
  EXPECT_EQ(AlignedShareOf(5, {.rank = 3, .world = 4}), (Share{3, 2}));
}

TEST(ShareTest, AlignedSharesKeepBlocksWholeIfThereAreEnough) {
  EXPECT_EQ(AlignedShareOf(384, {.rank = 0, .world = 2}, 128), (Share{0, 128}));
  EXPECT_EQ(AlignedShareOf(384, {.rank = 1, .world = 2}, 128), (Share{128, 256}));
  EXPECT_EQ(AlignedShareOf(11008, {.rank = 1, .world = 4}, 128), (Share{2688, 2816}));
  // Two blocks for three ranks: as without them.
  EXPECT_EQ(AlignedShareOf(256, {.rank = 1, .world = 3}, 128), (Share{64, 64}));
}

TEST(ShareTest, ALargeDimensionDoesNotOverflow) {
  const int64_t size = int64_t{1} << 40;
  EXPECT_EQ(ShareOf(size, {.rank = 63, .world = 64}), (Share{size / 64 * 63, size / 64}));
}

TEST(ShareTest, RejectsDimensionsSmallerThanTheWorld) {
  EXPECT_TRUE(CheckDivides("inner", 4, {.rank = 0, .world = 4}).ok());
  const absl::Status status = CheckDivides("inner", 3, {.rank = 0, .world = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("inner must give each rank a part: expected at least 4"));
}

struct Heads {
  int num_q_heads;
  int num_kv_heads;
  int world;
};

TEST(HeadShareTest, EveryQHeadIsOnOneRankWithItsKvHead) {
  for (const Heads& heads : {Heads{32, 8, 1}, Heads{32, 8, 2}, Heads{32, 8, 8}, Heads{32, 8, 16},
                             Heads{32, 8, 32}, Heads{6, 6, 4}, Heads{10, 2, 4}, Heads{10, 2, 3},
                             Heads{8, 1, 4}, Heads{7, 1, 2}, Heads{15, 3, 2}, Heads{15, 3, 7}}) {
    SCOPED_TRACE(testing::Message() << heads.num_q_heads << " over " << heads.num_kv_heads << ", "
                                    << heads.world << " ranks");
    const int group = heads.num_q_heads / heads.num_kv_heads;
    int64_t next = 0;
    for (int rank = 0; rank < heads.world; ++rank) {
      const absl::StatusOr<HeadShare> share =
          HeadShareOf(heads.num_q_heads, heads.num_kv_heads, {.rank = rank, .world = heads.world});
      ASSERT_TRUE(share.ok()) << share.status();
      EXPECT_EQ(share->q.begin, next);
      next = share->q.end();
      EXPECT_GT(share->q.size, 0);
      ASSERT_GT(share->kv.size, 0);
      ASSERT_EQ(share->q.size % share->kv.size, 0);
      // Attention on the rank computes a q head's KV head from the rank's own ratio.
      const int64_t ratio = share->q.size / share->kv.size;
      for (int64_t i = 0; i < share->q.size; ++i) {
        EXPECT_EQ((share->q.begin + i) / group, share->kv.begin + i / ratio) << "rank " << rank;
      }
    }
    EXPECT_EQ(next, heads.num_q_heads);
  }
}

TEST(HeadShareTest, CutsAtUnitsOfQHeadsIfWholeGroupsAllowThem) {
  const auto q = [](int num_q_heads, int num_kv_heads, int world, int64_t unit) {
    return HeadShareOf(num_q_heads, num_kv_heads, {.rank = 1, .world = world}, unit)->q;
  };
  EXPECT_EQ(q(14, 14, 2, 1), (Share{7, 7}));
  EXPECT_EQ(q(14, 14, 2, 2), (Share{6, 8}));
  EXPECT_EQ(q(28, 14, 2, 2), (Share{14, 14}));  // a group is a unit
  EXPECT_EQ(q(18, 6, 2, 2), (Share{6, 12}));    // groups of 3 heads: 2 groups are 3 units
  EXPECT_EQ(q(14, 2, 2, 2), (Share{7, 7}));     // one group for each rank
}

TEST(HeadShareTest, RejectsRanksWithoutAHead) {
  const absl::StatusOr<HeadShare> share = HeadShareOf(4, 4, {.rank = 0, .world = 8});
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(share.status().message(), HasSubstr("expected at least 8 q heads"));
  EXPECT_THAT(share.status().message(), HasSubstr("got 4"));
}

}  // namespace
}  // namespace reprise
