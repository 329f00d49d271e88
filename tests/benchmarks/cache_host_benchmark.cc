// What the books of the KV cache cost on the host.
//
//   ./bazelw run --config=cpu //tests/benchmarks:cache_host_benchmark
//
//   PoolAllocateRelease        one block taken and given back
//   PoolAllocateReleaseBatch   the same, 64 at a time; the time is that of one block
//   PoolEvict                  the same where every block is cached: allocate evicts the oldest
//   PoolFencedRelease          the same under tickets, one a batch of 64; the time is a block's
//   HashTokens/b               names for a prompt of 16,384 tokens in blocks of b; time a token
//   LookupHit/n, LookupMiss/n  hashing and lookup of that prompt in blocks of 16, all or nothing of
//                              it there, in an index of n other blocks; tokens compared or not
//   LookupSuffix/n             as a sliding window of 1,024 tokens asks, without hashing
//   InsertRemove/n             one block
//   PartialHit                 the best of 64 children
//
// Beside them, to compare machines: VectorPushPop, and CopyTokens, which copies what HashTokens
// reads. Compare figures of one run only, on a machine that does nothing else.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/fence.h"
#include "base/ids.h"
#include "benchmark/benchmark.h"
#include "cache/block_pool.h"
#include "cache/prefix_hash.h"
#include "cache/prefix_index.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16, kNumTokens = 16384, kPromptBlocks = kNumTokens / kBlockSize;
constexpr int kBatch = 64, kPoolBlocks = 1 << 16;
constexpr PrefixSeed kSeed = {.low = 1, .high = 2};

// A consumer that is always done.
class PassedFence : public Fence {
 public:
  void Arm() override {}
  bool Passed() override { return true; }
  void Wait() override {}
};

void CountItems(benchmark::State& state, int64_t num_a_round) {
  state.counters["time"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_a_round),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// A pool that has run for a while: its free blocks are in no order, and half of them are in use.
BlockPool WornPool() {
  BlockPool pool = *BlockPool::Create({.num_blocks = kPoolBlocks});
  std::vector<BlockId> blocks(kPoolBlocks - 1);
  if (!pool.Allocate(absl::MakeSpan(blocks)).ok()) std::abort();
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
  for (int i = 0; i < kPoolBlocks / 2; ++i) pool.Release(blocks[i]);
  return pool;
}

std::vector<int32_t> RandomTokens(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(kNumTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128256);
  return tokens;
}

void VectorPushPop(benchmark::State& state) {
  std::vector<int32_t> stack;
  stack.reserve(16);
  for (auto _ : state) {
    stack.push_back(1);
    benchmark::DoNotOptimize(stack.data());
    benchmark::ClobberMemory();
    stack.pop_back();
  }
  CountItems(state, 1);
}
BENCHMARK(VectorPushPop);

void PoolAllocateRelease(benchmark::State& state) {
  BlockPool pool = WornPool();
  for (auto _ : state) {
    BlockId block;
    benchmark::DoNotOptimize(pool.Allocate(absl::MakeSpan(&block, 1)).ok());
    pool.Release(block);
  }
  CountItems(state, 1);
}
BENCHMARK(PoolAllocateRelease);

void PoolAllocateReleaseBatch(benchmark::State& state) {
  BlockPool pool = WornPool();
  std::vector<BlockId> blocks(kBatch);
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.Allocate(absl::MakeSpan(blocks)).ok());
    for (const BlockId block : blocks) pool.Release(block);
  }
  CountItems(state, kBatch);
}
BENCHMARK(PoolAllocateReleaseBatch);

void PoolEvict(benchmark::State& state) {
  BlockPool pool = *BlockPool::Create({.num_blocks = kPoolBlocks});
  std::vector<BlockId> blocks(kPoolBlocks - 1);
  if (!pool.Allocate(absl::MakeSpan(blocks)).ok()) std::abort();
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
  for (const BlockId block : blocks) {
    pool.KeepContent(block);
    pool.Release(block);
  }
  for (auto _ : state) {
    BlockId block;
    benchmark::DoNotOptimize(pool.Allocate(absl::MakeSpan(&block, 1)).ok());
    pool.KeepContent(block);
    pool.Release(block);
  }
  CountItems(state, 1);
}
BENCHMARK(PoolEvict);

void PoolFencedRelease(benchmark::State& state) {
  BlockPool pool = WornPool();
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 3; ++i) fences.push_back(std::make_unique<PassedFence>());
  const FenceQueueId queue = *pool.AddFenceQueue(std::move(fences));
  std::vector<BlockId> blocks(kBatch);
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.Allocate(absl::MakeSpan(blocks)).ok());
    const FenceTicket ticket = pool.Arm(queue);
    for (const BlockId block : blocks) pool.Release(block, ticket);
    pool.Poll();
  }
  CountItems(state, kBatch);
}
BENCHMARK(PoolFencedRelease);

void CopyTokens(benchmark::State& state) {
  const std::vector<int32_t> tokens = RandomTokens(1);
  std::vector<int32_t> copy(kNumTokens);
  for (auto _ : state) {
    std::memcpy(copy.data(), tokens.data(), kNumTokens * sizeof(int32_t));
    benchmark::DoNotOptimize(copy.data());
    benchmark::ClobberMemory();
  }
  CountItems(state, kNumTokens);
}
BENCHMARK(CopyTokens);

void HashTokens(benchmark::State& state) {
  const int block_size = static_cast<int>(state.range(0));
  const PrefixHasher hasher(kSeed);
  const std::vector<int32_t> tokens = RandomTokens(1);
  std::vector<PrefixHash> hashes(kNumTokens / block_size);
  for (auto _ : state) {
    hasher.Chain(hasher.Root(), tokens, block_size, absl::MakeSpan(hashes));
    benchmark::DoNotOptimize(hashes.data());
  }
  CountItems(state, kNumTokens);
}
BENCHMARK(HashTokens)->Arg(1)->Arg(16)->Arg(128);

// An index whose blocks are those of other prompts, but for the last ones, which are the prompt's.
class FilledIndex {
 public:
  FilledIndex(int num_blocks, PrefixTokens stored)
      : index(*PrefixIndex::Create(
            {.num_blocks = num_blocks, .block_size = kBlockSize, .tokens = stored, .seed = kSeed})),
        tokens(RandomTokens(0)),
        hashes(kPromptBlocks),
        blocks(kPromptBlocks) {
    std::vector<int32_t> ids(num_blocks - 1);
    for (int i = 0; i < num_blocks - 1; ++i) ids[i] = i + 1;
    std::shuffle(ids.begin(), ids.end(), std::mt19937(7));
    for (unsigned prompt = 0; ids.size() >= kPromptBlocks; ++prompt) {
      const std::vector<int32_t> its_tokens = RandomTokens(prompt);
      index.hasher().Chain(index.hasher().Root(), its_tokens, kBlockSize, absl::MakeSpan(hashes));
      for (int i = 0; i < kPromptBlocks; ++i) {
        index.Insert(BlockId(ids.back()), KeyOf(its_tokens, i));
        ids.pop_back();
      }
    }
    spare = BlockId(ids.back());
    index.hasher().Chain(index.hasher().Root(), tokens, kBlockSize, absl::MakeSpan(hashes));
  }

  PrefixKey KeyOf(const std::vector<int32_t>& its_tokens, int i) const {
    return {.hash = hashes[i],
            .parent = i == 0 ? index.hasher().Root() : hashes[i - 1],
            .tokens = absl::MakeConstSpan(its_tokens).subspan(i * kBlockSize, kBlockSize)};
  }

  PrefixIndex index;
  std::vector<int32_t> tokens;
  std::vector<PrefixHash> hashes;
  std::vector<BlockId> blocks;
  BlockId spare;  // not indexed
};

void Lookup(benchmark::State& state, FilledIndex& filled) {
  int num_hits = 0;
  for (auto _ : state) {
    filled.index.hasher().Chain(filled.index.hasher().Root(), filled.tokens, kBlockSize,
                                absl::MakeSpan(filled.hashes));
    num_hits = filled.index.FindPrefix({.hashes = filled.hashes, .tokens = filled.tokens},
                                       absl::MakeSpan(filled.blocks));
    benchmark::DoNotOptimize(num_hits);
  }
  state.counters["hits"] = num_hits;
}

void LookupHit(benchmark::State& state) {
  FilledIndex filled(static_cast<int>(state.range(0)), PrefixTokens::kNotStored);
  Lookup(state, filled);
}
BENCHMARK(LookupHit)->Arg(1 << 16)->Arg(1 << 20)->Unit(benchmark::kMicrosecond);

void LookupHitComparingTokens(benchmark::State& state) {
  FilledIndex filled(static_cast<int>(state.range(0)), PrefixTokens::kStored);
  Lookup(state, filled);
}
BENCHMARK(LookupHitComparingTokens)->Arg(1 << 16)->Arg(1 << 20)->Unit(benchmark::kMicrosecond);

void LookupMiss(benchmark::State& state) {
  FilledIndex filled(static_cast<int>(state.range(0)), PrefixTokens::kNotStored);
  filled.tokens[0] ^= 1;
  Lookup(state, filled);
}
BENCHMARK(LookupMiss)->Arg(1 << 16)->Unit(benchmark::kMicrosecond);

void LookupSuffix(benchmark::State& state) {
  FilledIndex filled(static_cast<int>(state.range(0)), PrefixTokens::kNotStored);
  for (auto _ : state) {
    benchmark::DoNotOptimize(filled.index.FindSuffix({.hashes = filled.hashes}, 1024 / kBlockSize,
                                                     absl::MakeSpan(filled.blocks)));
  }
}
BENCHMARK(LookupSuffix)->Arg(1 << 16)->Unit(benchmark::kMicrosecond);

void InsertRemove(benchmark::State& state) {
  FilledIndex filled(static_cast<int>(state.range(0)), PrefixTokens::kStored);
  std::vector<int32_t> tokens(kBlockSize);
  const PrefixHash root = filled.index.hasher().Root();
  for (auto _ : state) {
    ++tokens[0];
    filled.index.Insert(
        filled.spare,
        {.hash = filled.index.hasher().Extend(root, tokens), .parent = root, .tokens = tokens});
    filled.index.Remove(filled.spare);
  }
  CountItems(state, 1);
}
BENCHMARK(InsertRemove)->Arg(1 << 16);

void PartialHit(benchmark::State& state) {
  PrefixIndex index = *PrefixIndex::Create(
      {.num_blocks = 65, .block_size = kBlockSize, .tokens = PrefixTokens::kStored, .seed = kSeed});
  const PrefixHash root = index.hasher().Root();
  std::vector<int32_t> tokens(kBlockSize);
  for (int i = 1; i <= 64; ++i) {
    tokens[kBlockSize / 2] = i;  // alike up to the middle
    index.Insert(BlockId(i),
                 {.hash = index.hasher().Extend(root, tokens), .parent = root, .tokens = tokens});
  }
  tokens[kBlockSize / 2] = 0;
  for (auto _ : state) benchmark::DoNotOptimize(index.FindPartial(0, root, tokens));
}
BENCHMARK(PartialHit);

}  // namespace
}  // namespace reprise
