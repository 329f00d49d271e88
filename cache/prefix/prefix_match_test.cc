#include "reprise/cache/prefix/prefix_match.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/group_retention.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 2;
constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};

constexpr KvGroupSpec WindowOf(int span) {
  return {.retention = KvRetention::kSlidingWindow, .span = span};
}
constexpr KvGroupSpec ChunksOf(int span) {
  return {.retention = KvRetention::kChunkedLocal, .span = span};
}

// A prompt, and an index that has some of its blocks in each group.
class Case {
 public:
  Case(std::vector<KvGroupSpec> groups, int num_blocks)
      : groups_(std::move(groups)),
        num_blocks_(num_blocks),
        index_(
            *PrefixIndex::Create({.num_blocks = 1 + num_blocks * static_cast<int>(groups_.size()),
                                  .block_size = kBlockSize,
                                  .num_groups = static_cast<int>(groups_.size())})),
        tokens_(num_blocks * kBlockSize, 3),
        hashes_(num_blocks),
        is_here_(groups_.size(), std::vector<bool>(num_blocks, false)) {
    index_.hasher().Chain(index_.hasher().Root(), tokens_, kBlockSize, absl::MakeSpan(hashes_));
  }

  BlockId BlockOf(int group, int column) const { return BlockId(1 + group * num_blocks_ + column); }

  void Insert(int group, int column) {
    is_here_[group][column] = true;
    index_.Insert(BlockOf(group, column),
                  {.group = group,
                   .hash = hashes_[column],
                   .parent = column == 0 ? index_.hasher().Root() : hashes_[column - 1],
                   .tokens = {}});
  }
  void Insert(int group, std::vector<int> columns) {
    for (const int column : columns) Insert(group, column);
  }

  int Match(std::vector<BlockId>& hits) const {
    hits.assign(groups_.size() * num_blocks_, BlockId(-1));
    return MatchPrefix({.index = index_,
                        .groups = groups_,
                        .block_size = kBlockSize,
                        .max_blocks = num_blocks_,
                        .num_full_blocks = num_blocks_,
                        .hashes = [&](int n) { return absl::MakeConstSpan(hashes_).first(n); },
                        .tokens = tokens_},
                       absl::MakeSpan(hits));
  }
  int Match() const {
    std::vector<BlockId> hits;
    return Match(hits);
  }

  // Returns the same result by trying all lengths.
  int LongestByTrying() const {
    for (int n = num_blocks_; n > 0; --n) {
      bool has_all = true;
      for (size_t group = 0; group < groups_.size(); ++group) {
        if (!HoldsOwnTokens(groups_[group])) continue;
        for (int i = FirstNeededBlock(groups_[group], n * kBlockSize, kBlockSize); i < n; ++i) {
          has_all = has_all && is_here_[group][i];
        }
      }
      if (has_all) return n;
    }
    return 0;
  }

  const std::vector<KvGroupSpec> groups_;
  const int num_blocks_;
  PrefixIndex index_;
  std::vector<int32_t> tokens_;
  std::vector<PrefixHash> hashes_;
  std::vector<std::vector<bool>> is_here_;
};

TEST(PrefixMatchTest, FullGroupNeedsEveryBlockFromTheLeft) {
  Case c({kFull}, 5);
  c.Insert(0, {0, 1, 3, 4});
  EXPECT_EQ(c.Match(), 2);
}

TEST(PrefixMatchTest, WindowNeedsOnlyTheLastBlocks) {
  Case c({WindowOf(4)}, 6);  // 3 tokens and the query's token: 2 blocks
  c.Insert(0, {1, 2, 4});
  EXPECT_EQ(c.Match(), 3);
  c.Insert(0, 5);
  EXPECT_EQ(c.Match(), 6);
}

TEST(PrefixMatchTest, ChunkedGroupNeedsNoBlocksAtAChunkBoundary) {
  Case c({ChunksOf(4)}, 6);
  EXPECT_EQ(c.Match(), 6);  // 12 tokens: the next token begins a chunk
  Case odd({ChunksOf(4)}, 5);
  EXPECT_EQ(odd.Match(), 4);
  odd.Insert(0, 4);
  EXPECT_EQ(odd.Match(), 5);
}

TEST(PrefixMatchTest, ShorterHitOfOneGroupIsSearchedInAllGroups) {
  Case c({kFull, WindowOf(3), WindowOf(5)}, 6);
  c.Insert(0, {0, 1, 2, 3, 4, 5});
  c.Insert(1, {1, 2, 5});     // needs one block: hits of 6, 3 or 2
  c.Insert(2, {0, 1, 3, 4});  // needs two blocks: hits of 5, 2 or 1
  EXPECT_EQ(c.Match(), 2);
}

TEST(PrefixMatchTest, CrossGroupsDoNotAffectTheMatch) {
  Case c({kFull, kCross}, 3);
  c.Insert(0, {0, 1});
  EXPECT_EQ(c.Match(), 2);
}

TEST(PrefixMatchTest, MatchesTryingEveryLength) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 3000; ++round) {
    std::vector<KvGroupSpec> groups(1 + below(3));
    for (KvGroupSpec& group : groups) {
      const int kind = below(4);
      group = kind == 0   ? kFull
              : kind == 1 ? kCross
              : kind == 2 ? WindowOf(1 + below(9))
                          : ChunksOf(1 + below(9));
    }
    groups.push_back(below(2) ? kFull : WindowOf(1 + below(5)));
    Case c(groups, 1 + below(round % 10 == 0 ? 150 : 12));
    const int one_in = 2 + below(20);
    for (int group = 0; group < static_cast<int>(groups.size()); ++group) {
      for (int column = 0; column < c.num_blocks_; ++column) {
        if (below(one_in) != 0) c.Insert(group, column);
      }
    }
    std::vector<BlockId> hits;
    const int num_blocks = c.Match(hits);
    ASSERT_EQ(num_blocks, c.LongestByTrying());
    for (int group = 0; group < static_cast<int>(groups.size()); ++group) {
      if (!HoldsOwnTokens(groups[group])) continue;
      for (int i = FirstNeededBlock(groups[group], num_blocks * kBlockSize, kBlockSize);
           i < num_blocks; ++i) {
        ASSERT_EQ(hits[group * c.num_blocks_ + i], c.BlockOf(group, i));
      }
    }
  }
}

}  // namespace
}  // namespace reprise
