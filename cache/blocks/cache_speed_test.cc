// Checks that the bookkeeping of the cache is cheap. Each call is compared with a similar
// standard-library call in the same run. The fastest of many rounds counts. The limits are about
// four times the measured values: a busy machine or another compiler should not exceed them, but a
// worse order of growth does. Separate tests of the order of growth compare a call with itself over
// more blocks or longer sequences. Allocations are counted, not timed. For absolute figures, see
// tests/benchmarks/cache_host_benchmark.cc.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16, kNumPromptBlocks = 1024, kNumBlocks = 1 << 15;

// Prevents the compiler from removing the result of a round.
volatile int64_t sink;

// Returns the time of the fastest of 200 rounds, in seconds.
template <typename Round>
double SecondsOf(const Round& round) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sink = sink + round();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, time.count());
  }
  return fastest;
}

std::vector<int32_t> RandomTokens(int num_blocks) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(num_blocks * kBlockSize);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128256);
  return tokens;
}

std::string_view BytesOf(const std::vector<int32_t>& tokens, int i) {
  return {reinterpret_cast<const char*>(&tokens[i * kBlockSize]), kBlockSize * sizeof(int32_t)};
}

// Baseline: malloc and free of 64 bytes, the closest counterpart of the pool. Measured: 1.5.
TEST(CacheSpeedTest, AllocateAndReleaseCostAFewTimesAMalloc) {
  constexpr int kNumCalls = 4096;
  BlockPool pool = *BlockPool::Create({.num_blocks = kNumBlocks});
  const double blocks = SecondsOf([&] {
    int64_t sum = 0;
    for (int i = 0; i < kNumCalls; ++i) {
      BlockId block;
      if (!pool.Allocate(absl::MakeSpan(&block, 1)).ok()) std::abort();
      sum += block.value();
      pool.Release(block);
    }
    return sum;
  });
  const double mallocs = SecondsOf([&] {
    int64_t sum = 0;
    for (int i = 0; i < kNumCalls; ++i) {
      void* volatile memory = std::malloc(64);  // volatile, so that the compiler keeps both calls
      sum += memory != nullptr;
      std::free(memory);
    }
    return sum;
  });
  RecordProperty("ratio_percent", static_cast<int>(100 * blocks / mallocs));
  EXPECT_LE(blocks, 6 * mallocs);
  const AllocationCounter allocations;
  BlockId block;
  ASSERT_TRUE(pool.Allocate(absl::MakeSpan(&block, 1)).ok());
  pool.Release(block);
  EXPECT_EQ(allocations.count(), 0);
}

// The cost does not grow with the pool: with 200 times the blocks, the time is equal except for
// cache misses.
TEST(CacheSpeedTest, AllocationCostIsIndependentOfThePoolSize) {
  const auto seconds = [](int num_blocks) {
    BlockPool pool = *BlockPool::Create({.num_blocks = num_blocks});
    std::vector<BlockId> all(num_blocks - 1);
    if (!pool.Allocate(absl::MakeSpan(all)).ok()) std::abort();
    for (const BlockId block : all) {
      pool.KeepContent(block);
      pool.Release(block);
    }
    return SecondsOf([&] {
      int64_t sum = 0;
      for (int i = 0; i < 1024; ++i) {
        BlockId block;
        if (!pool.Allocate(absl::MakeSpan(&block, 1)).ok()) std::abort();
        sum += block.value();
        pool.KeepContent(block);
        pool.Release(block);
      }
      return sum;
    });
  };
  EXPECT_LE(seconds(200 * 1000), 10 * seconds(1000));
}

// Baseline: std::hash of the same bytes, 64 bits instead of 128. Measured: 5.2.
TEST(CacheSpeedTest, PrefixHashCostsAFewTimesStdHash) {
  const std::vector<int32_t> tokens = RandomTokens(kNumPromptBlocks);
  const PrefixHasher hasher({.low = 1, .high = 2});
  std::vector<PrefixHash> hashes(kNumPromptBlocks);
  const double names = SecondsOf([&] {
    hasher.Chain(hasher.Root(), tokens, kBlockSize, absl::MakeSpan(hashes));
    return static_cast<int64_t>(hashes.back().low);
  });
  const double bytes = SecondsOf([&] {
    uint64_t sum = 0;
    for (int i = 0; i < kNumPromptBlocks; ++i) {
      sum ^= std::hash<std::string_view>()(BytesOf(tokens, i));
    }
    return static_cast<int64_t>(sum);
  });
  RecordProperty("ratio_percent", static_cast<int>(100 * names / bytes));
  EXPECT_LE(names, 20 * bytes);
}

// Baseline: finding each block's tokens alone in a std::unordered_map. Measured: 1.9.
TEST(CacheSpeedTest, LookupCostsAFewTimesAnUnorderedMap) {
  const std::vector<int32_t> tokens = RandomTokens(kNumBlocks - 1);
  PrefixIndex index = *PrefixIndex::Create({.num_blocks = kNumBlocks,
                                            .block_size = kBlockSize,
                                            .tokens = PrefixTokens::kStored,
                                            .seed = PrefixSeed{.low = 1, .high = 2}});
  std::vector<PrefixHash> hashes(kNumBlocks - 1);
  index.hasher().Chain(index.hasher().Root(), tokens, kBlockSize, absl::MakeSpan(hashes));
  std::unordered_map<std::string, int32_t> map;
  for (int i = 0; i < kNumBlocks - 1; ++i) {
    index.Insert(BlockId(i + 1),
                 {.hash = hashes[i],
                  .parent = i == 0 ? index.hasher().Root() : hashes[i - 1],
                  .tokens = absl::MakeConstSpan(tokens).subspan(i * kBlockSize, kBlockSize)});
    map.emplace(BytesOf(tokens, i), i);
  }
  hashes.resize(kNumPromptBlocks);
  std::vector<BlockId> blocks(kNumPromptBlocks);
  const double lookup = SecondsOf([&] {
    index.hasher().Chain(index.hasher().Root(), tokens, kBlockSize, absl::MakeSpan(hashes));
    return index.FindPrefix({.hashes = hashes, .tokens = tokens}, absl::MakeSpan(blocks));
  });
  EXPECT_EQ(blocks.back(), BlockId(kNumPromptBlocks));  // the whole prompt was found
  std::vector<std::string> keys;
  for (int i = 0; i < kNumPromptBlocks; ++i) keys.emplace_back(BytesOf(tokens, i));
  const double map_lookup = SecondsOf([&] {
    int64_t sum = 0;
    for (const std::string& key : keys) sum += map.find(key)->second;
    return sum;
  });
  RecordProperty("ratio_percent", static_cast<int>(100 * lookup / map_lookup));
  EXPECT_LE(lookup, 8 * map_lookup);
  const AllocationCounter allocations;
  ASSERT_EQ(index.FindPrefix({.hashes = hashes, .tokens = tokens}, absl::MakeSpan(blocks)),
            kNumPromptBlocks);
  EXPECT_EQ(allocations.count(), 0);
}

// The same prompt in an index with 32 times the blocks takes the same time, except for cache
// misses.
TEST(CacheSpeedTest, LookupCostIsIndependentOfTheIndexSize) {
  const auto seconds = [](int num_indexed) {
    const std::vector<int32_t> tokens = RandomTokens(num_indexed);
    PrefixIndex index = *PrefixIndex::Create({.num_blocks = num_indexed + 1,
                                              .block_size = kBlockSize,
                                              .tokens = PrefixTokens::kStored,
                                              .seed = PrefixSeed{.low = 1, .high = 2}});
    std::vector<PrefixHash> hashes(num_indexed);
    index.hasher().Chain(index.hasher().Root(), tokens, kBlockSize, absl::MakeSpan(hashes));
    for (int i = 0; i < num_indexed; ++i) {
      index.Insert(BlockId(i + 1),
                   {.hash = hashes[i],
                    .parent = i == 0 ? index.hasher().Root() : hashes[i - 1],
                    .tokens = absl::MakeConstSpan(tokens).subspan(i * kBlockSize, kBlockSize)});
    }
    hashes.resize(512);
    std::vector<BlockId> blocks(512);
    const double fastest = SecondsOf([&] {
      return index.FindPrefix({.hashes = hashes, .tokens = tokens}, absl::MakeSpan(blocks));
    });
    EXPECT_EQ(blocks.back(), BlockId(512));
    return fastest;
  };
  EXPECT_LE(seconds(32 * 1024), 8 * seconds(1024));
}

// Returns the time of the fastest step of 256 sequences with about `num_tokens` tokens each. Each
// sequence appends one token and commits it; the updates of the tables are taken in between.
double SecondsOfStep(int num_tokens) {
  constexpr int kNumSequences = 256;
  const int max_blocks = num_tokens / kBlockSize + 16;
  BlockManager manager = *BlockManager::Create({.num_blocks = 1 + kNumSequences * max_blocks,
                                                .block_size = kBlockSize,
                                                .num_slots = kNumSequences,
                                                .max_blocks = max_blocks,
                                                .prefix_reuse = PrefixReuse::kOn});
  std::vector<SlotAppend> batch(kNumSequences);
  for (int i = 0; i < kNumSequences; ++i) {
    batch[i] = {.slot = SlotId(i), .num_tokens = 1};
    const std::vector<int32_t> tokens(num_tokens - i % kBlockSize, i);
    if (!manager.Add(SlotId(i), static_cast<int>(tokens.size())).ok()) std::abort();
    if (!manager.Commit(SlotId(i), tokens).ok()) std::abort();
  }
  manager.TakeUpdates();
  return SecondsOf([&] {
    if (!manager.AppendBatch(batch).ok()) std::abort();
    const int64_t num_updates = manager.TakeUpdates().size();
    for (int i = 0; i < kNumSequences; ++i) {
      if (!manager.Commit(SlotId(i), absl::MakeConstSpan(&i, 1)).ok()) std::abort();
    }
    return num_updates;
  });
}

// Baseline: appends one token to each of 256 vectors, in random order. Measured: 38.
TEST(CacheSpeedTest, StepOfManySequencesCostsABoundedMultipleOfPushBack) {
  std::vector<std::vector<int32_t>> texts(256);
  std::vector<int> order(256);
  for (int i = 0; i < 256; ++i) {
    texts[i].reserve(1000);
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const double vectors = SecondsOf([&] {
    for (const int i : order) texts[i].push_back(i);
    return static_cast<int64_t>(texts[7].size());
  });
  const double step = SecondsOfStep(1024);
  RecordProperty("ratio_percent", static_cast<int>(100 * step / vectors));
  EXPECT_LE(step, 150 * vectors);
}

TEST(CacheSpeedTest, StepCostIsIndependentOfTheSequenceLength) {
  EXPECT_LE(SecondsOfStep(16 * 1024), 5 * SecondsOfStep(512));
}

}  // namespace
}  // namespace reprise
