// Starts and ends random sequences over a prefix cache, and compares it with a plain record of the
// content and the holders of each block.

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/blocks/deferred_releases.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 40, kBlockSize = 2, kNumSteps = 20000, kMaxSequences = 8;
constexpr int kFull = 0, kWindow = 1;  // groups

struct Sequence {
  int group = 0;
  std::vector<int32_t> tokens;
  std::vector<PrefixHash> hashes;
  std::vector<BlockId> blocks;  // null block if it left the window
  int num_inserted = 0;
};

// The content that was written to a block.
struct Content {
  int group = 0;
  std::vector<int32_t> prefix;
  PrefixHash parent;

  friend bool operator==(const Content&, const Content&) = default;
};

// When to release the blocks of a sequence that ends, or of a window that moves.
enum class Releases { kAtOnce, kAfterCopies };

class RandomCache {
 public:
  RandomCache(unsigned seed, Releases releases)
      : random_(seed),
        releases_(releases),
        cache_(*PrefixCache::Create({.pool = {.num_blocks = kNumBlocks},
                                     .block_size = kBlockSize,
                                     .num_groups = 2,
                                     .tokens = PrefixTokens::kStored})),
        contents_(kNumBlocks) {}

  void Step() {
    const int action = Below(12);
    if (action < 3) return Start();
    if (action < 6) return InsertOne();
    if (action < 8) return End();
    if (action < 10) return MoveWindow();
    last_passed_ = std::min(last_event_, last_passed_ + Below(3));
    deferred_.ReleasePassed(last_passed_, [&](BlockId block) { cache_.Release(block); });
    if (Below(500) == 0) Clear();
  }

  // New weights: running sequences continue, but other sequences may not share their blocks.
  void Clear() {
    cache_.Clear();
    for (Sequence& sequence : sequences_) {
      sequence.num_inserted = static_cast<int>(sequence.blocks.size());
    }
  }

  void Check() {
    cache_.CheckInvariants();
    std::vector<int> num_holders(kNumBlocks, 0);
    for (const Sequence& sequence : sequences_) {
      for (size_t i = 0; i < sequence.blocks.size(); ++i) {
        if (sequence.blocks[i] == kNullBlock) continue;
        ++num_holders[sequence.blocks[i].value()];
        ASSERT_EQ(contents_[sequence.blocks[i].value()], ContentOf(sequence, i));
      }
    }
    for (int64_t i = 0; i < deferred_.size(); ++i) ++num_holders[deferred_.block(i).value()];
    for (int i = 1; i < kNumBlocks; ++i) {
      ASSERT_EQ(cache_.pool().ref_count(BlockId(i)), num_holders[i]) << "block " << i;
      if (!cache_.index().contains(BlockId(i))) continue;
      ASSERT_EQ(cache_.index().group(BlockId(i)), contents_[i].group);
      // No parent is evicted before its children.
      if (contents_[i].group != kFull || contents_[i].prefix.size() == kBlockSize) continue;
      ASSERT_TRUE(cache_.index().Find(kFull, contents_[i].parent).has_value()) << "block " << i;
    }
  }

  int64_t num_evictions() const { return cache_.pool().num_evictions(); }
  int64_t num_duplicates() const { return cache_.index().statistics().num_duplicates; }
  int64_t num_hits() const { return num_hits_; }

 private:
  int Below(int n) { return static_cast<int>(random_() % n); }

  PrefixHash ParentOf(const Sequence& sequence, size_t i) const {
    return i == 0 ? cache_.hasher().Root() : sequence.hashes[i - 1];
  }

  Content ContentOf(const Sequence& sequence, size_t i) const {
    const auto begin = sequence.tokens.begin();
    return {.group = sequence.group,
            .prefix = {begin, begin + (i + 1) * kBlockSize},
            .parent = ParentOf(sequence, i)};
  }

  // Finds the last cached block of the query. Returns its index + 1, or 0 if no block is cached.
  // Sets the blocks before it to null blocks.
  int FindLastOf(const PrefixQuery& query, absl::Span<BlockId> blocks) const {
    int end = static_cast<int>(query.hashes.size());
    for (; end > 0; --end) {
      const PrefixQuery one = {.group = query.group,
                               .hashes = query.hashes.subspan(end - 1, 1),
                               .tokens = query.tokens.subspan((end - 1) * kBlockSize, kBlockSize)};
      if (cache_.index().FindPrefix(one, blocks.subspan(end - 1, 1)) == 1) break;
    }
    if (end > 0) std::fill(blocks.begin(), blocks.begin() + end - 1, kNullBlock);
    return end;
  }

  void Start() {
    if (static_cast<int>(sequences_.size()) == kMaxSequences) return;
    Sequence sequence;
    sequence.group = Below(2);
    const int num_blocks = 1 + Below(6);
    for (int i = 0; i < num_blocks * kBlockSize; ++i) sequence.tokens.push_back(Below(8) == 0);
    sequence.hashes.resize(num_blocks);
    cache_.hasher().Chain(cache_.hasher().Root(), sequence.tokens, kBlockSize,
                          absl::MakeSpan(sequence.hashes));
    const PrefixQuery query = {
        .group = sequence.group, .hashes = sequence.hashes, .tokens = sequence.tokens};
    std::vector<BlockId> blocks(num_blocks);
    int num_hits = 0;
    if (Below(3) > 0) {  // otherwise the whole prompt is computed
      // A window covers at most the previous block.
      num_hits = sequence.group == kFull ? cache_.index().FindPrefix(query, absl::MakeSpan(blocks))
                                         : FindLastOf(query, absl::MakeSpan(blocks));
    }
    for (int i = 0; i < num_hits; ++i) {
      if (blocks[i] == kNullBlock) continue;
      ASSERT_EQ(contents_[blocks[i].value()], ContentOf(sequence, i)) << "a wrong hit";
      ++num_hits_;
    }
    const absl::Span<BlockId> fresh = absl::MakeSpan(blocks).subspan(num_hits);
    const absl::Span<const BlockId> hits = absl::MakeConstSpan(blocks).first(num_hits);
    if (!cache_.CheckAcquirable(hits, static_cast<int64_t>(fresh.size())).ok()) return;
    for (const BlockId hit : hits) {
      if (hit != kNullBlock) cache_.Share(hit);
    }
    ASSERT_TRUE(cache_.AllocateReserved(fresh).ok());
    for (int i = num_hits; i < num_blocks; ++i) {
      contents_[blocks[i].value()] = ContentOf(sequence, i);
    }
    sequence.blocks = std::move(blocks);
    sequence.num_inserted = num_hits;
    sequences_.push_back(std::move(sequence));
  }

  void InsertOne() {
    if (sequences_.empty()) return;
    Sequence& sequence = sequences_[Below(static_cast<int>(sequences_.size()))];
    const int i = sequence.num_inserted;
    if (i == static_cast<int>(sequence.blocks.size())) return;
    ++sequence.num_inserted;
    if (sequence.blocks[i] == kNullBlock) return;
    cache_.Insert(
        sequence.blocks[i],
        {.group = sequence.group,
         .hash = sequence.hashes[i],
         .parent = ParentOf(sequence, i),
         .tokens = absl::MakeConstSpan(sequence.tokens).subspan(i * kBlockSize, kBlockSize)});
  }

  void End() {
    if (sequences_.empty()) return;
    const int which = Below(static_cast<int>(sequences_.size()));
    Sequence sequence = std::move(sequences_[which]);
    sequences_.erase(sequences_.begin() + which);
    std::reverse(sequence.blocks.begin(), sequence.blocks.end());  // children before parents
    Release(sequence.blocks);
  }

  // Some windows release their first block.
  void MoveWindow() {
    for (Sequence& sequence : sequences_) {
      if (sequence.group != kWindow || Below(2) == 0) continue;
      const auto first = std::find_if(sequence.blocks.begin(), sequence.blocks.end(),
                                      [](BlockId block) { return block != kNullBlock; });
      if (first == sequence.blocks.end()) continue;
      const BlockId block = std::exchange(*first, kNullBlock);
      Release({block});
    }
  }

  void Release(const std::vector<BlockId>& blocks) {
    ++last_event_;
    for (const BlockId block : blocks) {
      if (block == kNullBlock) continue;
      releases_ == Releases::kAtOnce ? cache_.Release(block) : deferred_.Push(block, last_event_);
    }
  }

  std::mt19937 random_;
  Releases releases_;
  PrefixCache cache_;
  DeferredReleases deferred_;
  int64_t last_event_ = 0;
  int64_t last_passed_ = 0;
  std::vector<Content> contents_;  // by block
  std::vector<Sequence> sequences_;
  int64_t num_hits_ = 0;
};

class PrefixCacheRandomTest : public testing::TestWithParam<Releases> {};

TEST_P(PrefixCacheRandomTest, HitsHaveTheWrittenContentAndChildrenAreEvictedFirst) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomCache cache(seed, GetParam());
  for (int step = 0; step < kNumSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(cache.Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(cache.Check()) << "step " << step;
  }
  // The run was not trivial.
  EXPECT_GT(cache.num_evictions(), 100);
  EXPECT_GT(cache.num_duplicates(), 100);
  EXPECT_GT(cache.num_hits(), 1000);
}

INSTANTIATE_TEST_SUITE_P(Releases, PrefixCacheRandomTest,
                         testing::Values(Releases::kAtOnce, Releases::kAfterCopies));

}  // namespace
}  // namespace reprise
