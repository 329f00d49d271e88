#include "reprise/cache/blocks/prefix_cache.h"

#include <glog/logging.h>

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kBlockSize = 4;

PrefixCache CacheOf(PrefixCacheOptions options) {
  options.block_size = kBlockSize;
  options.seed = PrefixSeed{.low = 1, .high = 2};
  return *PrefixCache::Create(options);
}

// A sequence as in an engine: tokens, their hashes, blocks.
struct Sequence {
  std::vector<int32_t> tokens;
  std::vector<PrefixHash> hashes;  // hashes of the full blocks
  std::vector<BlockId> blocks;
};

Sequence SequenceOf(const PrefixCache& cache, std::vector<int32_t> tokens) {
  Sequence sequence = {.tokens = std::move(tokens), .hashes = {}, .blocks = {}};
  sequence.hashes.resize(sequence.tokens.size() / kBlockSize);
  cache.hasher().Chain(cache.hasher().Root(), sequence.tokens, kBlockSize,
                       absl::MakeSpan(sequence.hashes));
  return sequence;
}

PrefixKey KeyOf(const PrefixCache& cache, const Sequence& sequence, int i, int group = 0) {
  return {.group = group,
          .hash = sequence.hashes[i],
          .parent = i == 0 ? cache.hasher().Root() : sequence.hashes[i - 1],
          .tokens = absl::MakeConstSpan(sequence.tokens).subspan(i * kBlockSize, kBlockSize)};
}

std::vector<BlockId> HitsOf(const PrefixCache& cache, const Sequence& sequence) {
  std::vector<BlockId> hits(sequence.hashes.size());
  hits.resize(cache.index().FindPrefix({.hashes = sequence.hashes, .tokens = sequence.tokens},
                                       absl::MakeSpan(hits)));
  return hits;
}

// Shares `hits` and allocates all of `fresh`, or changes nothing.
absl::Status Acquire(PrefixCache& cache, absl::Span<const BlockId> hits,
                     absl::Span<BlockId> fresh) {
  absl::Status status = cache.CheckAcquirable(hits, static_cast<int64_t>(fresh.size()));
  if (!status.ok()) return status;
  for (const BlockId hit : hits) cache.Share(hit);
  return cache.AllocateReserved(fresh);
}

// Shares the cached blocks and allocates the rest.
absl::Status Start(PrefixCache& cache, Sequence& sequence) {
  std::vector<BlockId> hits = HitsOf(cache, sequence);
  std::vector<BlockId> fresh(sequence.hashes.size() - hits.size());
  if (absl::Status status = Acquire(cache, hits, absl::MakeSpan(fresh)); !status.ok())
    return status;
  sequence.blocks = hits;
  sequence.blocks.insert(sequence.blocks.end(), fresh.begin(), fresh.end());
  return absl::OkStatus();
}

void InsertAll(PrefixCache& cache, const Sequence& sequence) {
  for (size_t i = 0; i < sequence.blocks.size(); ++i) {
    cache.Insert(sequence.blocks[i], KeyOf(cache, sequence, static_cast<int>(i)));
  }
}

void End(PrefixCache& cache, Sequence& sequence) {
  while (!sequence.blocks.empty()) {
    cache.Release(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
}

std::vector<int32_t> TokensFrom(int32_t first, int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(PrefixCacheTest, RepeatedSequenceFindsItsBlocks) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}});
  Sequence first = SequenceOf(cache, TokensFrom(100, 14));  // 3 full blocks
  ASSERT_TRUE(Start(cache, first).ok());
  EXPECT_THAT(HitsOf(cache, first), SizeIs(0));
  InsertAll(cache, first);
  const std::vector<BlockId> blocks = first.blocks;
  End(cache, first);
  EXPECT_EQ(cache.pool().num_cached(), 3);

  Sequence again = SequenceOf(cache, TokensFrom(100, 14));
  ASSERT_TRUE(Start(cache, again).ok());
  EXPECT_EQ(again.blocks, blocks);
  EXPECT_EQ(cache.pool().num_cached(), 0);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, ABlockInUseIsFoundAndShared) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}});
  Sequence one = SequenceOf(cache, TokensFrom(0, 8)), two = one;
  ASSERT_TRUE(Start(cache, one).ok());
  InsertAll(cache, one);
  ASSERT_TRUE(Start(cache, two).ok());
  EXPECT_EQ(two.blocks, one.blocks);
  EXPECT_EQ(cache.pool().ref_count(one.blocks[0]), 2);
  End(cache, one);
  EXPECT_EQ(cache.pool().num_used(), 2);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, AnEvictedBlockIsNoLongerFound) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 4}});  // 3 to give
  Sequence sequence = SequenceOf(cache, TokensFrom(0, 12));
  ASSERT_TRUE(Start(cache, sequence).ok());
  InsertAll(cache, sequence);
  const std::vector<BlockId> blocks = sequence.blocks;
  End(cache, sequence);

  BlockId fresh;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(&fresh, 1)).ok());
  EXPECT_EQ(fresh, blocks[2]);  // the leaf, which was released first
  EXPECT_THAT(HitsOf(cache, sequence), ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(cache.pool().num_evictions(), 1);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, RejectedAcquireChangesNothing) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 6}});  // 5 to give
  Sequence old = SequenceOf(cache, TokensFrom(0, 12));       // 3
  ASSERT_TRUE(Start(cache, old).ok());
  InsertAll(cache, old);
  End(cache, old);
  BlockId other;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(&other, 1)).ok());

  // 1 block is free and 3 are cached. The 3 hits leave only 1 for the 2 requested blocks.
  Sequence longer = SequenceOf(cache, TokensFrom(0, 20));
  const absl::Status status = Start(cache, longer);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 are available now, requested 5"));
  EXPECT_EQ(cache.pool().num_cached(), 3);
  EXPECT_EQ(cache.pool().num_free(), 1);

  // The order of eviction is unchanged, too: still the leaf first.
  std::array<BlockId, 2> two;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(two)).ok());
  EXPECT_THAT(HitsOf(cache, old), SizeIs(2));
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, HitsAreNotEvictedForTheRestOfTheSameSequence) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 6}});
  Sequence old = SequenceOf(cache, TokensFrom(0, 12)), other = SequenceOf(cache, TokensFrom(50, 8));
  ASSERT_TRUE(Start(cache, old).ok());
  ASSERT_TRUE(Start(cache, other).ok());
  InsertAll(cache, old);
  InsertAll(cache, other);
  const std::vector<BlockId> blocks = old.blocks;
  End(cache, old);  // now the oldest cached blocks
  End(cache, other);

  Sequence longer = SequenceOf(cache, TokensFrom(0, 20));  // 3 hits + 2
  ASSERT_TRUE(Start(cache, longer).ok());
  EXPECT_THAT(absl::MakeSpan(longer.blocks).first(3), testing::ElementsAreArray(blocks));
  EXPECT_EQ(cache.pool().num_used(), 5);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, NullBlocksAmongHitsNeedNoBlocks) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 5}});
  BlockId block;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(&block, 1)).ok());
  const std::array<BlockId, 3> hits = {kNullBlock, block, kNullBlock};
  EXPECT_TRUE(cache.CheckAcquirable(hits, 3).ok());
  EXPECT_FALSE(cache.CheckAcquirable(hits, 4).ok());
}

TEST(PrefixCacheTest, OnlyReservedCallsUseTheReserve) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 5, .num_reserved_blocks = 2}});
  std::array<BlockId, 3> fresh;
  EXPECT_FALSE(cache.CheckAcquirable({}, 3).ok());
  EXPECT_TRUE(cache.CheckAcquirableReserved({}, 3).ok());
  EXPECT_TRUE(cache.AllocateReserved(absl::MakeSpan(fresh)).ok());
  BlockId block;
  EXPECT_TRUE(cache.AllocateReserved(absl::MakeSpan(&block, 1)).ok());
  EXPECT_EQ(cache.pool().num_free(), 0);
}

TEST(PrefixCacheTest, UnusedDuplicateIsFreed) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}});
  Sequence one = SequenceOf(cache, TokensFrom(0, 8)), two = one;
  ASSERT_TRUE(Start(cache, one).ok());
  ASSERT_TRUE(Start(cache, two).ok());  // misses: no block has been inserted yet
  InsertAll(cache, one);
  InsertAll(cache, two);
  EXPECT_EQ(HitsOf(cache, one), one.blocks);  // the first
  EXPECT_EQ(cache.index().num_keys(), 2);
  cache.CheckInvariants();

  const std::vector<BlockId> second = two.blocks;
  End(cache, one);
  EXPECT_EQ(cache.pool().num_cached(), 0);
  EXPECT_EQ(HitsOf(cache, two), second);
  cache.CheckInvariants();
  End(cache, two);
  EXPECT_EQ(cache.pool().num_cached(), 2);
  EXPECT_EQ(HitsOf(cache, two), second);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, InsertingAUsedBlockFreesItsCachedDuplicate) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}});
  Sequence one = SequenceOf(cache, TokensFrom(0, 8)), two = one;
  ASSERT_TRUE(Start(cache, one).ok());
  ASSERT_TRUE(Start(cache, two).ok());
  InsertAll(cache, one);
  End(cache, one);
  EXPECT_EQ(cache.pool().num_cached(), 2);
  InsertAll(cache, two);
  EXPECT_EQ(cache.pool().num_cached(), 0);
  EXPECT_EQ(cache.pool().num_free(), 7);
  EXPECT_EQ(HitsOf(cache, two), two.blocks);
  cache.CheckInvariants();
}

// Would fail if unused duplicates were kept: A and B both compute the parent, and B a child. A ends
// before B, so A's parent would be the oldest block when the child is cached.
TEST(PrefixCacheTest, ParentComputedTwiceOutlivesItsChildren) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 6}});  // 5 to give
  Sequence a = SequenceOf(cache, TokensFrom(0, 4)), b = SequenceOf(cache, TokensFrom(0, 8));
  ASSERT_TRUE(Start(cache, a).ok());
  ASSERT_TRUE(Start(cache, b).ok());
  InsertAll(cache, a);
  InsertAll(cache, b);
  End(cache, a);
  End(cache, b);
  std::array<BlockId, 4> fresh;  // evicts one of the two cached blocks
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(fresh)).ok());
  EXPECT_THAT(HitsOf(cache, b), SizeIs(1));
  cache.CheckInvariants();
}

// A window of two blocks: the blocks that left the window are evicted first, then its last block.
TEST(PrefixCacheTest, BlocksThatLeftAWindowAreEvictedFirst) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 5}});  // 4 to give
  Sequence sequence = SequenceOf(cache, TokensFrom(0, 16));
  ASSERT_TRUE(Start(cache, sequence).ok());
  InsertAll(cache, sequence);
  const std::vector<BlockId> blocks = sequence.blocks;
  for (const int i : {0, 1, 3, 2}) cache.Release(blocks[i]);  // moves over two blocks, then ends

  std::array<BlockId, 3> fresh;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(fresh)).ok());
  EXPECT_THAT(fresh, ElementsAre(blocks[0], blocks[1], blocks[3]));
  EXPECT_EQ(cache.index().Find(0, sequence.hashes[2]), blocks[2]);
  EXPECT_EQ(cache.index().Find(0, sequence.hashes[3]), std::nullopt);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, ForgottenBlockIsNeitherFoundNorCached) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 5}});
  Sequence sequence = SequenceOf(cache, TokensFrom(0, 8));
  ASSERT_TRUE(Start(cache, sequence).ok());
  InsertAll(cache, sequence);
  cache.Forget(sequence.blocks[1]);  // in use, and about to be overwritten
  EXPECT_THAT(HitsOf(cache, sequence), SizeIs(1));
  const BlockId parent = sequence.blocks[0];
  End(cache, sequence);
  EXPECT_EQ(cache.pool().num_cached(), 1);
  EXPECT_EQ(cache.pool().num_free(), 3);
  cache.Forget(parent);  // cached
  cache.Forget(parent);  // no longer cached
  EXPECT_EQ(cache.pool().num_free(), 4);
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, ClearEmptiesTheIndexAndKeepsUsedBlocks) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}, .num_events = 16});
  Sequence used = SequenceOf(cache, TokensFrom(0, 8)),
           cached = SequenceOf(cache, TokensFrom(50, 8));
  ASSERT_TRUE(Start(cache, used).ok());
  ASSERT_TRUE(Start(cache, cached).ok());
  InsertAll(cache, used);
  InsertAll(cache, cached);
  End(cache, cached);
  cache.TakeEvents();
  cache.Clear();
  cache.CheckInvariants();
  EXPECT_EQ(cache.pool().num_used(), 2);
  EXPECT_EQ(cache.pool().num_free(), 7);
  EXPECT_THAT(HitsOf(cache, used), SizeIs(0));
  const PrefixEvents taken = cache.TakeEvents();
  ASSERT_THAT(taken.events, SizeIs(1));
  EXPECT_EQ(taken.events[0].kind, PrefixEvent::Kind::kCleared);
  End(cache, used);
  EXPECT_EQ(cache.pool().num_free(), 9);
}

TEST(PrefixCacheTest, NoBlockIsFoundWithReuseOff) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 10}, .reuse = PrefixReuse::kOff});
  Sequence sequence = SequenceOf(cache, TokensFrom(0, 12));
  ASSERT_TRUE(Start(cache, sequence).ok());
  InsertAll(cache, sequence);
  EXPECT_THAT(HitsOf(cache, sequence), SizeIs(0));
  cache.Forget(sequence.blocks[0]);
  End(cache, sequence);
  EXPECT_EQ(cache.pool().num_free(), 9);
  cache.Clear();
  cache.CheckInvariants();
}

TEST(PrefixCacheTest, EvictionsCauseEvents) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 2}, .num_events = 8});
  Sequence sequence = SequenceOf(cache, TokensFrom(0, 4));
  ASSERT_TRUE(Start(cache, sequence).ok());
  InsertAll(cache, sequence);
  const BlockId block = sequence.blocks[0];
  End(cache, sequence);
  BlockId fresh;
  ASSERT_TRUE(cache.AllocateReserved(absl::MakeSpan(&fresh, 1)).ok());
  const PrefixEvent stored = {.kind = PrefixEvent::Kind::kStored,
                              .block = block,
                              .group = 0,
                              .num_tokens = kBlockSize,
                              .hash = sequence.hashes[0],
                              .parent = cache.hasher().Root()};
  PrefixEvent removed = stored;
  removed.kind = PrefixEvent::Kind::kRemoved;
  removed.parent = {};
  EXPECT_THAT(cache.TakeEvents().events, ElementsAre(stored, removed));
}

TEST(PrefixCacheTest, RejectsOptionsOutOfRange) {
  const auto message = [](const PrefixCacheOptions& options) {
    const absl::Status status = PrefixCache::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.pool = {.num_blocks = 1}}), HasSubstr("num_blocks"));
  EXPECT_THAT(message({.pool = {.num_blocks = 4, .num_reserved_blocks = 9}}),
              HasSubstr("num_reserved_blocks"));
  EXPECT_THAT(message({.pool = {.num_blocks = 4}, .block_size = 0}),
              HasSubstr("block_size must be at least 1, got 0"));
  EXPECT_THAT(message({.pool = {.num_blocks = 4}, .num_groups = 0}),
              HasSubstr("num_groups must be 1 to 65535, got 0"));
  EXPECT_THAT(message({.pool = {.num_blocks = 4}, .num_groups = 65536}), HasSubstr("num_groups"));
  EXPECT_THAT(message({.pool = {.num_blocks = 4}, .num_events = -1}),
              HasSubstr("num_events must be at least 0, got -1"));
}

TEST(PrefixCacheDeathTest, DiesOnInsertOfAnUnusedBlock) {
  PrefixCache cache = CacheOf({.pool = {.num_blocks = 4}});
  const Sequence sequence = SequenceOf(cache, TokensFrom(0, 4));
  EXPECT_DEATH(cache.Insert(BlockId(1), KeyOf(cache, sequence, 0)), "block 1, which is not used");
  EXPECT_DEATH(cache.Insert(kNullBlock, KeyOf(cache, sequence, 0)), "block 0, which is not used");
}

TEST(PrefixCacheTest, UsesAtMost64BytesPerBlockWithoutTokens) {
  constexpr int kNumBlocks = 100000;
  PrefixCache cache = CacheOf({.pool = {.num_blocks = kNumBlocks}});
  EXPECT_LE(cache.num_bytes(), int64_t{64} * kNumBlocks);
}

TEST(PrefixCacheTest, SteadyStateDoesNotAllocateMemory) {
  PrefixCache cache =
      CacheOf({.pool = {.num_blocks = 64}, .tokens = PrefixTokens::kStored, .num_events = 4096});
  std::vector<Sequence> sequences;
  for (int i = 0; i < 16; ++i) sequences.push_back(SequenceOf(cache, TokensFrom(10 * (i % 8), 40)));
  std::array<BlockId, 10> hits, fresh;

  const auto run = [&](Sequence& sequence) {
    const int num_hits = cache.index().FindPrefix(
        {.hashes = sequence.hashes, .tokens = sequence.tokens}, absl::MakeSpan(hits));
    const absl::Span<BlockId> rest = absl::MakeSpan(fresh).first(10 - num_hits);
    CHECK(Acquire(cache, absl::MakeSpan(hits).first(num_hits), rest).ok());
    for (int i = num_hits; i < 10; ++i) {
      hits[i] = fresh[i - num_hits];
      cache.Insert(hits[i], KeyOf(cache, sequence, i));
    }
    for (int i = 9; i >= 0; --i) cache.Release(hits[i]);
  };
  for (Sequence& sequence : sequences) run(sequence);
  const int64_t num_evictions_before = cache.pool().num_evictions();
  cache.TakeEvents();
  const AllocationCounter allocations;
  for (int repetition = 0; repetition < 4; ++repetition) {
    for (Sequence& sequence : sequences) run(sequence);
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_GT(cache.pool().num_evictions(), num_evictions_before);  // the run was not trivial
  EXPECT_EQ(cache.TakeEvents().num_lost, 0);
}

}  // namespace
}  // namespace reprise
