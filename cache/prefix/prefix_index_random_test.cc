// Compares the prefix index with a plain model that stores the whole prefix of each block, token by
// token.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 48, kBlockSize = 2, kNumGroups = 3, kNumSteps = 20000;

// The content of a key: the group, the adapter and all tokens up to the block's end.
struct Prefix {
  int group = 0;
  int adapter = 0;
  std::vector<int32_t> tokens;

  friend auto operator<=>(const Prefix&, const Prefix&) = default;
};

class RandomIndex {
 public:
  RandomIndex(unsigned seed, PrefixTokens tokens)
      : random_(seed),
        index_(*PrefixIndex::Create({.num_blocks = kNumBlocks,
                                     .block_size = kBlockSize,
                                     .num_groups = kNumGroups,
                                     .tokens = tokens,
                                     .num_events = 4})),
        has_tokens_(tokens == PrefixTokens::kStored) {}

  void Step() {
    const int action = Below(10);
    if (action < 5) {
      Insert();
    } else if (action < 9) {
      Remove(BlockId(1 + Below(kNumBlocks - 1)));
    } else if (Below(200) == 0) {
      index_.Clear();
      blocks_of_.clear();
      prefix_of_.clear();
    }
    ApplyEvents();
  }

  void Compare() {
    index_.CheckInvariants();
    ASSERT_EQ(index_.num_indexed(), static_cast<int>(prefix_of_.size()));
    ASSERT_EQ(index_.num_keys(), static_cast<int>(blocks_of_.size()));
    const Prefix prompt = RandomPrefix();
    const std::vector<PrefixHash> hashes = HashesOf(prompt);
    const PrefixQuery query = {.group = prompt.group, .hashes = hashes, .tokens = prompt.tokens};
    std::vector<BlockId> expected;
    for (size_t i = 0; i < hashes.size(); ++i) expected.push_back(First(Cut(prompt, i)));

    std::vector<BlockId> found(hashes.size());
    for (size_t i = 0; i < hashes.size(); ++i) {
      const PrefixQuery one = {.group = prompt.group,
                               .hashes = query.hashes.subspan(i, 1),
                               .tokens = query.tokens.subspan(i * kBlockSize, kBlockSize)};
      const bool is_here = expected[i] != kNullBlock;
      ASSERT_EQ(index_.FindPrefix(one, absl::MakeSpan(found).subspan(i, 1)), is_here);
      if (is_here) {
        ASSERT_EQ(found[i], expected[i]);
      }
    }
    const int num_prefix = index_.FindPrefix(query, absl::MakeSpan(found));
    ASSERT_EQ(num_prefix,
              std::find(expected.begin(), expected.end(), kNullBlock) - expected.begin());
    if (has_tokens_) ComparePartial(prompt);
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % n); }

  Prefix RandomPrefix() {
    Prefix prefix = {.group = Below(kNumGroups), .adapter = Below(2), .tokens = {}};
    prefix.tokens.resize(kBlockSize * (1 + Below(5)));
    for (int32_t& token : prefix.tokens) token = Below(2);
    return prefix;
  }

  // Returns the prefix of the first i + 1 blocks.
  static Prefix Cut(Prefix prefix, size_t i) {
    prefix.tokens.resize((i + 1) * kBlockSize);
    return prefix;
  }

  PrefixHash RootOf(const Prefix& prefix) {
    const ExtraKey adapter = {.kind = ExtraKeyKind::kAdapter,
                              .value = prefix.adapter == 0 ? "zero" : "one"};
    return index_.hasher().Root({&adapter, 1});
  }

  std::vector<PrefixHash> HashesOf(const Prefix& prefix) {
    std::vector<PrefixHash> hashes(prefix.tokens.size() / kBlockSize);
    index_.hasher().Chain(RootOf(prefix), prefix.tokens, kBlockSize, absl::MakeSpan(hashes));
    return hashes;
  }

  // Returns the oldest block with the prefix, or the null block if there is none.
  BlockId First(const Prefix& prefix) const {
    const auto blocks = blocks_of_.find(prefix);
    return blocks == blocks_of_.end() ? kNullBlock : blocks->second.front();
  }

  void Insert() {
    const BlockId block(1 + Below(kNumBlocks - 1));
    if (prefix_of_.count(block)) return;
    const Prefix prefix = RandomPrefix();
    const std::vector<PrefixHash> hashes = HashesOf(prefix);
    const PrefixHash parent = hashes.size() == 1 ? RootOf(prefix) : hashes[hashes.size() - 2];
    const PrefixInsertion insertion =
        index_.Insert(block, {.group = prefix.group,
                              .hash = hashes.back(),
                              .parent = parent,
                              .tokens = absl::MakeConstSpan(prefix.tokens).last(kBlockSize)});
    ASSERT_EQ(insertion,
              blocks_of_.count(prefix) ? PrefixInsertion::kDuplicate : PrefixInsertion::kFirst);
    blocks_of_[prefix].push_back(block);
    prefix_of_[block] = prefix;
  }

  void Remove(BlockId block) {
    ASSERT_EQ(index_.contains(block), prefix_of_.count(block) == 1);
    index_.Remove(block);
    const auto prefix = prefix_of_.find(block);
    if (prefix == prefix_of_.end()) return;
    std::vector<BlockId>& blocks = blocks_of_[prefix->second];
    blocks.erase(std::find(blocks.begin(), blocks.end(), block));
    if (blocks.empty()) blocks_of_.erase(prefix->second);
    prefix_of_.erase(prefix);
  }

  // A router that applies the events, and a snapshot if some are lost, has the same keys.
  void ApplyEvents() {
    if (Below(3) > 0) return;
    const PrefixEvents taken = index_.TakeEvents();
    for (const PrefixEvent& event : taken.events) {
      const std::pair key(event.group, event.hash.ToString());
      if (event.kind == PrefixEvent::Kind::kCleared) {
        router_.clear();
      } else if (event.kind == PrefixEvent::Kind::kStored) {
        ASSERT_TRUE(router_.emplace(key, event.block).second);
      } else {
        ASSERT_EQ(router_.erase(key), 1u);
      }
    }
    if (taken.num_lost > 0) {
      router_.clear();
      for (const PrefixEvent& event : index_.Snapshot()) {
        router_.emplace(std::pair(event.group, event.hash.ToString()), event.block);
      }
    }
    ASSERT_EQ(router_.size(), blocks_of_.size());
    for (const auto& [prefix, blocks] : blocks_of_) {
      ASSERT_EQ(router_.count({prefix.group, HashesOf(prefix).back().ToString()}), 1u);
    }
  }

  void ComparePartial(const Prefix& prompt) {
    Prefix parent = prompt;
    parent.tokens.resize(prompt.tokens.size() - kBlockSize);
    const absl::Span<const int32_t> asked = absl::MakeConstSpan(prompt.tokens).last(kBlockSize);
    int num_best = 0;
    for (const auto& [prefix, blocks] : blocks_of_) {
      Prefix its_parent = prefix;
      its_parent.tokens.resize(prefix.tokens.size() - kBlockSize);
      if (its_parent != parent) continue;
      const absl::Span<const int32_t> its = absl::MakeConstSpan(prefix.tokens).last(kBlockSize);
      const auto end = std::mismatch(asked.begin(), asked.end(), its.begin()).first;
      num_best = std::max(num_best, static_cast<int>(end - asked.begin()));
    }
    const std::vector<PrefixHash> hashes = HashesOf(prompt);
    const PrefixHash parent_hash = hashes.size() == 1 ? RootOf(prompt) : hashes[hashes.size() - 2];
    const std::optional<PartialHit> hit = index_.FindPartial(prompt.group, parent_hash, asked);
    ASSERT_EQ(hit.has_value() ? hit->num_tokens : 0, num_best);
    if (!hit.has_value()) return;
    const Prefix& prefix = prefix_of_[hit->block];
    ASSERT_EQ(prefix.tokens.size(), prompt.tokens.size());
    ASSERT_TRUE(std::equal(prefix.tokens.begin(),
                           prefix.tokens.end() - kBlockSize + hit->num_tokens,
                           prompt.tokens.begin()));
    ASSERT_EQ(First(prefix), hit->block);
  }

  std::mt19937 random_;
  PrefixIndex index_;
  bool has_tokens_;
  std::map<Prefix, std::vector<BlockId>> blocks_of_;  // oldest first
  std::map<BlockId, Prefix> prefix_of_;
  std::map<std::pair<int, std::string>, BlockId> router_;
};

class PrefixIndexRandomTest : public testing::TestWithParam<PrefixTokens> {};

TEST_P(PrefixIndexRandomTest, RandomCallsMatchAPlainModel) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomIndex index(seed, GetParam());
  for (int step = 0; step < kNumSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(index.Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(index.Compare()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokens, PrefixIndexRandomTest,
                         testing::Values(PrefixTokens::kNotStored, PrefixTokens::kStored));

}  // namespace
}  // namespace reprise
