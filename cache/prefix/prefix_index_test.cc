#include "reprise/cache/prefix/prefix_index.h"

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/cache/prefix/prefix_hash.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kBlockSize = 4;

PrefixIndex IndexOf(PrefixIndexOptions options = {}) {
  if (options.num_blocks == 0) options.num_blocks = 32;
  options.block_size = kBlockSize;
  options.seed = PrefixSeed{.low = 1, .high = 2};
  return *PrefixIndex::Create(options);
}

// A sequence of full blocks, with its queries and keys.
struct Prompt {
  Prompt(const PrefixIndex& index, std::vector<int32_t> its_tokens, PrefixHash its_root)
      : tokens(std::move(its_tokens)), root(its_root), hashes(tokens.size() / kBlockSize) {
    index.hasher().Chain(root, tokens, kBlockSize, absl::MakeSpan(hashes));
  }
  Prompt(const PrefixIndex& index, std::vector<int32_t> its_tokens)
      : Prompt(index, std::move(its_tokens), index.hasher().Root()) {}

  absl::Span<const int32_t> block_tokens(int i) const {
    return absl::MakeConstSpan(tokens).subspan(i * kBlockSize, kBlockSize);
  }
  PrefixHash parent(int i) const { return i == 0 ? root : hashes[i - 1]; }
  PrefixKey key(int i, int group = 0) const {
    return {.group = group, .hash = hashes[i], .parent = parent(i), .tokens = block_tokens(i)};
  }
  PrefixQuery query(int group = 0) const {
    return {.group = group, .hashes = hashes, .tokens = tokens};
  }

  std::vector<int32_t> tokens;
  PrefixHash root;
  std::vector<PrefixHash> hashes;
};

std::vector<int32_t> TokensFrom(int32_t first, int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<BlockId> Prefix(const PrefixIndex& index, const PrefixQuery& query) {
  std::vector<BlockId> blocks(query.hashes.size());
  blocks.resize(index.FindPrefix(query, absl::MakeSpan(blocks)));
  return blocks;
}

TEST(PrefixIndexTest, FindsTheLongestPrefix) {
  PrefixIndex index = IndexOf();
  const Prompt prompt(index, TokensFrom(0, 16));
  for (const int i : {0, 1, 3}) index.Insert(BlockId(10 + i), prompt.key(i));
  EXPECT_THAT(Prefix(index, prompt.query()), ElementsAre(BlockId(10), BlockId(11)));
  index.Insert(BlockId(12), prompt.key(2));
  EXPECT_THAT(Prefix(index, prompt.query()),
              ElementsAre(BlockId(10), BlockId(11), BlockId(12), BlockId(13)));
  EXPECT_EQ(index.num_keys(), 4);
  index.CheckInvariants();
}

TEST(PrefixIndexTest, FindsABlockOnlyAfterItsPrefix) {
  PrefixIndex index = IndexOf();
  const Prompt prompt(index, {1, 1, 1, 1, 5, 5, 5, 5}), other(index, {2, 2, 2, 2, 5, 5, 5, 5});
  index.Insert(BlockId(1), prompt.key(0));
  index.Insert(BlockId(2), prompt.key(1));
  EXPECT_THAT(Prefix(index, other.query()), IsEmpty());
  EXPECT_EQ(index.Find(0, other.hashes[1]), std::nullopt);
  EXPECT_EQ(index.Find(0, prompt.hashes[1]), BlockId(2));
}

TEST(PrefixIndexTest, GroupsAreSeparate) {
  PrefixIndex index = IndexOf({.num_groups = 3});
  const Prompt prompt(index, TokensFrom(0, 4));
  index.Insert(BlockId(1), prompt.key(0, 0));
  index.Insert(BlockId(2), prompt.key(0, 2));
  EXPECT_THAT(Prefix(index, prompt.query(0)), ElementsAre(BlockId(1)));
  EXPECT_THAT(Prefix(index, prompt.query(1)), IsEmpty());
  EXPECT_THAT(Prefix(index, prompt.query(2)), ElementsAre(BlockId(2)));
  EXPECT_EQ(index.group(BlockId(2)), 2);
  EXPECT_FALSE(index.has_duplicates(BlockId(2)));
  index.CheckInvariants();
}

// With only two buckets, about half of the lookups meet the hash of another group.
TEST(PrefixIndexTest, GroupsAreSeparateInASharedBucket) {
  PrefixIndex index = IndexOf({.num_blocks = 2, .num_groups = 1000});
  const Prompt prompt(index, TokensFrom(0, 4));
  index.Insert(BlockId(1), prompt.key(0, 7));
  for (int group = 0; group < 1000; ++group) {
    EXPECT_EQ(index.Find(group, prompt.hashes[0]).has_value(), group == 7) << "group " << group;
  }
}

TEST(PrefixIndexTest, FindsTheOldestOfSeveralBlocksWithOneKey) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored});
  const Prompt prompt(index, TokensFrom(0, 4));
  EXPECT_EQ(index.Insert(BlockId(3), prompt.key(0)), PrefixInsertion::kFirst);
  EXPECT_EQ(index.Insert(BlockId(1), prompt.key(0)), PrefixInsertion::kDuplicate);
  EXPECT_EQ(index.Insert(BlockId(2), prompt.key(0)), PrefixInsertion::kDuplicate);
  EXPECT_EQ(index.num_indexed(), 3);
  EXPECT_EQ(index.num_keys(), 1);
  EXPECT_EQ(index.first_of_key(BlockId(2)), BlockId(3));
  EXPECT_TRUE(index.has_duplicates(BlockId(3)));
  index.CheckInvariants();

  index.Remove(BlockId(3));
  EXPECT_EQ(index.Find(0, prompt.hashes[0]), BlockId(1));
  index.CheckInvariants();
  index.Remove(BlockId(1));
  EXPECT_EQ(index.Find(0, prompt.hashes[0]), BlockId(2));
  EXPECT_FALSE(index.has_duplicates(BlockId(2)));
  index.Remove(BlockId(2));
  EXPECT_EQ(index.Find(0, prompt.hashes[0]), std::nullopt);
  EXPECT_EQ(index.num_keys(), 0);
  index.CheckInvariants();
}

TEST(PrefixIndexTest, EventsReportKeysButNotDuplicates) {
  PrefixIndex index = IndexOf({.num_groups = 2, .num_events = 8});
  const Prompt prompt(index, TokensFrom(0, 8));
  index.Insert(BlockId(1), prompt.key(1, 1));
  index.Insert(BlockId(2), prompt.key(1, 1));
  index.Remove(BlockId(1));
  index.Remove(BlockId(2));
  index.Remove(BlockId(2));  // no effect
  const PrefixEvent stored = {.kind = PrefixEvent::Kind::kStored,
                              .block = BlockId(1),
                              .group = 1,
                              .num_tokens = kBlockSize,
                              .hash = prompt.hashes[1],
                              .parent = prompt.hashes[0]};
  PrefixEvent removed = stored;
  removed.kind = PrefixEvent::Kind::kRemoved;
  removed.block = BlockId(2);
  removed.parent = {};
  EXPECT_THAT(index.TakeEvents().events, ElementsAre(stored, removed));
}

TEST(PrefixIndexTest, SnapshotMatchesTheEvents) {
  PrefixIndex index = IndexOf({.num_events = 1});
  const Prompt prompt(index, TokensFrom(0, 12));
  for (const int i : {0, 1, 2}) index.Insert(BlockId(5 + i), prompt.key(i));
  index.Remove(BlockId(6));
  EXPECT_EQ(index.TakeEvents().num_lost, 3);
  const auto event = [&](int block, int i) -> PrefixEvent {
    return {.kind = PrefixEvent::Kind::kStored,
            .block = BlockId(block),
            .num_tokens = kBlockSize,
            .hash = prompt.hashes[i]};
  };
  EXPECT_THAT(index.Snapshot(), ElementsAre(event(5, 0), event(7, 2)));
}

TEST(PrefixIndexTest, HashOfOtherTokensIsNotAHit) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored});
  const Prompt prompt(index, TokensFrom(0, 8));
  Prompt forged(index, TokensFrom(50, 8));
  forged.hashes = prompt.hashes;  // simulates a collision
  index.Insert(BlockId(1), prompt.key(0));
  index.Insert(BlockId(2), prompt.key(1));
  EXPECT_THAT(Prefix(index, forged.query()), IsEmpty());
  EXPECT_EQ(index.statistics().num_collisions, 1);
  EXPECT_THAT(Prefix(index, prompt.query()), ElementsAre(BlockId(1), BlockId(2)));
  // A query without tokens compares only the hashes.
  EXPECT_THAT(Prefix(index, {.hashes = forged.hashes}), ElementsAre(BlockId(1), BlockId(2)));

  EXPECT_EQ(index.Insert(BlockId(3), forged.key(0)), PrefixInsertion::kCollision);
  EXPECT_FALSE(index.contains(BlockId(3)));
  index.CheckInvariants();
}

TEST(PrefixIndexTest, PartialHitIsTheChildWithTheLongestCommonPrefix) {
  PrefixIndex index = IndexOf({.num_groups = 2, .tokens = PrefixTokens::kStored});
  const Prompt one(index, {1, 2, 3, 4, 5, 6, 70, 80}), two(index, {1, 2, 3, 4, 5, 6, 7, 80});
  index.Insert(BlockId(1), one.key(0));
  index.Insert(BlockId(2), one.key(1));
  index.Insert(BlockId(3), two.key(1));
  const PrefixHash parent = one.hashes[0];
  const auto partial = [&](std::vector<int32_t> tokens) {
    return index.FindPartial(0, parent, tokens);
  };
  EXPECT_EQ(partial({5, 6, 7, 8}), (PartialHit{BlockId(3), 3}));
  EXPECT_EQ(partial({5, 6, 70, 8}), (PartialHit{BlockId(2), 3}));
  EXPECT_EQ(partial({5, 9})->num_tokens, 1);
  // All of the block's tokens.
  EXPECT_EQ(partial({5, 6, 7, 80, 1, 1}), (PartialHit{BlockId(3), 4}));
  EXPECT_EQ(partial({9, 6, 7, 80}), std::nullopt);
  EXPECT_EQ(partial({}), std::nullopt);
  EXPECT_EQ(index.FindPartial(1, parent, {5, 6, 7}), std::nullopt);         // another group
  EXPECT_EQ(index.FindPartial(0, one.hashes[1], {5, 6, 7}), std::nullopt);  // another parent
  EXPECT_EQ(index.FindPartial(0, one.root, {1, 2}), (PartialHit{BlockId(1), 2}));
}

TEST(PrefixIndexTest, PartialHitRequiresTheSameExtraKeys) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored});
  const PrefixHash root = index.hasher().Root();
  const std::vector<int32_t> tokens = TokensFrom(0, 4);
  const std::vector<ExtraKey> cat = {{.kind = ExtraKeyKind::kImage, .value = "cat"}};
  const std::vector<ExtraKey> dog = {{.kind = ExtraKeyKind::kImage, .value = "dog"}};
  index.Insert(BlockId(1), {.hash = index.hasher().Extend(root, tokens, cat),
                            .parent = root,
                            .tokens = tokens,
                            .extra = cat});
  EXPECT_EQ(index.FindPartial(0, root, {0, 1}, cat), (PartialHit{BlockId(1), 2}));
  EXPECT_EQ(index.FindPartial(0, root, {0, 1}, dog), std::nullopt);
  EXPECT_EQ(index.FindPartial(0, root, {0, 1}), std::nullopt);
}

// Children are listed under 64 bits of their parent's hash. Here, another hash has the same 64
// bits.
TEST(PrefixIndexTest, PartialHitComparesTheWholeHashOfTheParent) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored});
  const Prompt prompt(index, TokensFrom(0, 4));
  index.Insert(BlockId(1), prompt.key(0));
  const PrefixHash same_tag = {.low = prompt.root.low ^ 1, .high = prompt.root.high ^ 2};
  EXPECT_EQ(index.FindPartial(0, same_tag, {0, 1}), std::nullopt);
  EXPECT_EQ(index.FindPartial(0, prompt.root, {0, 1}), (PartialHit{BlockId(1), 2}));
}

TEST(PrefixIndexTest, PartialHitIsFoundAfterItsFirstDuplicateIsRemoved) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored});
  const Prompt prompt(index, TokensFrom(0, 4));
  index.Insert(BlockId(1), prompt.key(0));
  index.Insert(BlockId(2), prompt.key(0));
  index.Remove(BlockId(1));
  EXPECT_EQ(index.FindPartial(0, prompt.root, {0, 1, 9}), (PartialHit{BlockId(2), 2}));
  index.Remove(BlockId(2));
  EXPECT_EQ(index.FindPartial(0, prompt.root, {0, 1, 9}), std::nullopt);
}

TEST(PrefixIndexTest, NoPartialHitsWithoutStoredTokens) {
  PrefixIndex index = IndexOf();
  const Prompt prompt(index, TokensFrom(0, 4));
  index.Insert(BlockId(1), prompt.key(0));
  EXPECT_EQ(index.FindPartial(0, prompt.root, {0, 1}), std::nullopt);
}

TEST(PrefixIndexTest, ClearRemovesAllBlocks) {
  PrefixIndex index = IndexOf({.tokens = PrefixTokens::kStored, .num_events = 8});
  const Prompt prompt(index, TokensFrom(0, 8));
  index.Insert(BlockId(1), prompt.key(0));
  index.Insert(BlockId(2), prompt.key(0));
  index.Insert(BlockId(3), prompt.key(1));
  index.TakeEvents();
  index.Clear();
  index.CheckInvariants();
  EXPECT_EQ(index.num_indexed(), 0);
  EXPECT_EQ(index.statistics().num_removed, 2);
  EXPECT_EQ(index.FindPartial(0, prompt.root, prompt.tokens), std::nullopt);
  EXPECT_THAT(index.TakeEvents().events,
              ElementsAre(PrefixEvent{.kind = PrefixEvent::Kind::kCleared}));
  EXPECT_EQ(index.Insert(BlockId(1), prompt.key(0)), PrefixInsertion::kFirst);
}

TEST(PrefixIndexTest, StatisticsMatchTheCalls) {
  PrefixIndex index = IndexOf();
  const Prompt prompt(index, TokensFrom(0, 8));
  index.Insert(BlockId(1), prompt.key(0));
  index.Insert(BlockId(2), prompt.key(0));
  index.Insert(BlockId(3), prompt.key(1));
  index.Remove(BlockId(3));
  index.CountLookup(100, 64);
  index.CountLookup(20, 0);
  const PrefixStatistics statistics = index.statistics();
  EXPECT_EQ(statistics.num_lookups, 2);
  EXPECT_EQ(statistics.num_tokens_asked, 120);
  EXPECT_EQ(statistics.num_tokens_hit, 64);
  EXPECT_EQ(statistics.num_stored, 2);
  EXPECT_EQ(statistics.num_duplicates, 1);
  EXPECT_EQ(statistics.num_removed, 1);
  EXPECT_EQ(statistics.num_collisions, 0);
}

TEST(PrefixIndexTest, UsesTheDocumentedBytes) {
  EXPECT_EQ(IndexOf({.num_blocks = 100}).num_bytes(), 100 * 36);
  EXPECT_EQ(IndexOf({.num_blocks = 100, .tokens = PrefixTokens::kStored}).num_bytes(),
            100 * (36 + 20 + 4 * kBlockSize));
}

TEST(PrefixIndexTest, IndexesWithoutASeedHaveDifferentHashes) {
  const PrefixIndexOptions options = {.num_blocks = 4, .block_size = kBlockSize};
  const PrefixIndex one = *PrefixIndex::Create(options), two = *PrefixIndex::Create(options);
  EXPECT_NE(one.hasher().Root(), two.hasher().Root());
}

TEST(PrefixIndexDeathTest, DiesOnInvalidCalls) {
  PrefixIndex index = IndexOf({.num_blocks = 4, .tokens = PrefixTokens::kStored});
  const Prompt prompt(index, TokensFrom(0, 8));
  index.Insert(BlockId(1), prompt.key(0));
  EXPECT_DEATH(index.Insert(BlockId(1), prompt.key(1)), "block 1, which is already indexed");
  EXPECT_DEATH(index.Insert(kNullBlock, prompt.key(1)), "Insert of the null block");
  EXPECT_DEATH(index.Insert(BlockId(4), prompt.key(1)), "block 4 is not of the pool of 4");
  EXPECT_DEATH(index.Remove(BlockId(-1)), "block -1 is not of the pool");
  EXPECT_DEATH(index.Insert(BlockId(2), prompt.key(1, 1)), "group 1 of 1");
  EXPECT_DEATH(index.Insert(BlockId(2), {.hash = prompt.hashes[1]}), "tokens of a block");
  EXPECT_DEATH(index.hash(BlockId(2)), "block 2 is not indexed");
  std::vector<BlockId> blocks(2);
  EXPECT_DEATH(index.FindPrefix(prompt.query(), absl::MakeSpan(blocks).first(1)), "1 vs. 2");
  EXPECT_DEATH(index.FindPrefix({.hashes = prompt.hashes, .tokens = prompt.block_tokens(0)},
                                absl::MakeSpan(blocks)),
               "4 tokens for 2 blocks");
}

TEST(PrefixIndexTest, RejectsOptionsOutOfRange) {
  const auto message = [](const PrefixIndexOptions& options) {
    const absl::Status status = PrefixIndex::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("num_blocks"));
  EXPECT_THAT(message({.num_blocks = 2, .block_size = 0}), HasSubstr("block_size"));
  EXPECT_THAT(message({.num_blocks = 2, .num_groups = 65536}), HasSubstr("got 65536"));
  EXPECT_THAT(message({.num_blocks = 2, .num_events = -1}), HasSubstr("num_events"));
}

}  // namespace
}  // namespace reprise
