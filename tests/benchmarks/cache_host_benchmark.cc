// The cost of KV cache bookkeeping on the host.
//
//   ./bazelw run --config=cpu //tests/benchmarks:cache_host_benchmark
//
//   PoolAllocateRelease        one block taken and given back
//   PoolAllocateReleaseBatch   the same, 64 at a time; the time is that of one block
//   PoolEvict                  the same where every block is cached: allocate evicts the oldest
//   SwapOutAndDrop             a sequence of 64 blocks added, swapped out (its books, not its bytes) and
//                              dropped; the time is that of one block
//   HashTokens/b               names for a prompt of 16,384 tokens in blocks of b; time a token
//   LookupHit/n, LookupMiss/n  hashing and lookup of that prompt in blocks of 16, all or nothing of
//                              it there, in an index of n other blocks; tokens compared or not
//   InsertRemove/n             one block
//   PartialHit                 the best of 64 children
//   AppendStep/g               one token more for each of 256 sequences of a model with a full group
//                              and g - 1 of windows: room, updates for the device; the time is a
//                              step's
//   CommitStep/g               the same tokens counted as computed: hashes of blocks that are full,
//                              blocks that left windows
//   AddPrompt, AddPromptHit    a prompt of 16,384 tokens, none or all of it in the cache, and its end
//
// Also, to compare machines: VectorPushPop, CopyTokens, which copies what HashTokens reads, and
// CountStep, which adds one to 256 lengths through the same slots as AppendStep. Compare figures of
// one run only, on an otherwise idle machine. `news` is calls of operator new per round: 0 after
// the first rounds.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/base/passed_fence.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/block_pool.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_index.h"

namespace reprise {
namespace {

constexpr int kBlockSize = 16, kNumTokens = 16384, kPromptBlocks = kNumTokens / kBlockSize;
constexpr int kBatch = 64, kPoolBlocks = 1 << 16;
constexpr PrefixSeed kSeed = {.low = 1, .high = 2};

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

void SwapOutAndDrop(benchmark::State& state) {
  BlockManager manager = *BlockManager::Create(
      {.num_blocks = kPoolBlocks, .block_size = kBlockSize, .num_slots = 1, .max_blocks = kBatch});
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 2; ++i) fences.push_back(std::make_unique<PassedFence>());
  SwapStore store =
      *SwapStore::Create({.num_host_blocks = kPoolBlocks}, &manager, std::move(fences));
  const SlotId slot(0);
  const SequenceId id(1);
  for (auto _ : state) {
    if (!manager.Add(slot, kBatch * kBlockSize).ok()) std::abort();
    if (!manager.CommitUnknown(slot, kBatch * kBlockSize).ok()) std::abort();
    if (!store.PlanOut(slot, id).ok()) std::abort();
    store.Launched();
    if (!store.Drop(id).ok()) std::abort();
  }
  CountItems(state, kBatch);
}
BENCHMARK(SwapOutAndDrop);

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

// An index that holds blocks of other prompts, and last those of the prompt.
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

// ---- The block manager, in a decode step.

constexpr int kNumSequences = 256, kContext = 1024;

std::vector<KvGroupSpec> GroupsOf(int num_groups) {
  std::vector<KvGroupSpec> groups(num_groups);
  for (int group = 1; group < num_groups; ++group) {
    groups[group] = {.retention = KvRetention::kSlidingWindow, .span = 512};
  }
  return groups;
}

// Decodes 256 sequences from 1,024 to 2,048 tokens, then starts again.
class Decode {
 public:
  explicit Decode(int num_groups)
      : manager_(*BlockManager::Create({.num_blocks = 1 + num_groups * kNumSequences * 128,
                                        .block_size = kBlockSize,
                                        .num_slots = kNumSequences,
                                        .max_blocks = 128,
                                        .groups = GroupsOf(num_groups),
                                        .prefix_reuse = PrefixReuse::kOn})),
        batch_(kNumSequences) {
    std::vector<int> slots(kNumSequences);
    for (int i = 0; i < kNumSequences; ++i) slots[i] = i;
    std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
    for (int i = 0; i < kNumSequences; ++i) {
      batch_[i] = {.slot = SlotId(slots[i]), .num_tokens = 1};
    }
    Begin();
  }

  void Append() {
    if (!manager_.AppendBatch(batch_).ok()) std::abort();
    benchmark::DoNotOptimize(manager_.TakeUpdates().data());
  }
  void Commit() {
    for (const SlotAppend& append : batch_) {
      const int32_t token = append.slot.value();
      if (!manager_.Commit(append.slot, absl::MakeConstSpan(&token, 1)).ok()) std::abort();
    }
  }
  bool is_full() const { return manager_.num_tokens(SlotId(0)) >= 2048; }

  void Begin() {
    for (int i = 0; i < kNumSequences; ++i) {
      const SlotId slot(i);
      if (manager_.contains(slot) && !manager_.Free(slot).ok()) std::abort();
      // Full at different steps.
      const std::vector<int32_t> tokens(kContext - i % kBlockSize, i);
      if (!manager_.Add(slot, static_cast<int>(tokens.size())).ok()) std::abort();
      if (!manager_.Commit(slot, tokens).ok()) std::abort();
    }
    manager_.TakeUpdates();
  }

 private:
  BlockManager manager_;
  std::vector<SlotAppend> batch_;
};

void CountStep(benchmark::State& state) {
  std::vector<int> slots(kNumSequences);
  std::vector<int64_t> lengths(kNumSequences * 8);  // a cache line each
  for (int i = 0; i < kNumSequences; ++i) slots[i] = i;
  std::shuffle(slots.begin(), slots.end(), std::mt19937(3));
  for (auto _ : state) {
    for (const int slot : slots) ++lengths[slot * 8];
    benchmark::DoNotOptimize(lengths.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(CountStep)->Unit(benchmark::kMicrosecond);

enum class Timed { kAppend, kCommit };

// Steps of which one part is timed.
void TimeSteps(benchmark::State& state, Timed timed) {
  Decode decode(static_cast<int>(state.range(0)));
  int64_t num_news = 0;
  for (auto _ : state) {
    if (decode.is_full() || timed == Timed::kCommit) {
      state.PauseTiming();
      if (decode.is_full()) decode.Begin();
      if (timed == Timed::kCommit) decode.Append();
      state.ResumeTiming();
    }
    const AllocationCounter news;
    if (timed == Timed::kAppend) {
      decode.Append();
    } else {
      decode.Commit();
    }
    num_news += news.count();
  }
  state.counters["news"] =
      benchmark::Counter(static_cast<double>(num_news), benchmark::Counter::kAvgIterations);
}

void AppendStep(benchmark::State& state) { TimeSteps(state, Timed::kAppend); }
BENCHMARK(AppendStep)->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMicrosecond);

void CommitStep(benchmark::State& state) { TimeSteps(state, Timed::kCommit); }
BENCHMARK(CommitStep)->Arg(1)->Arg(2)->Arg(4)->Unit(benchmark::kMicrosecond);

enum class Known { kNothing, kAll };

void AddPrompts(benchmark::State& state, Known known) {
  BlockManager manager = *BlockManager::Create({.num_blocks = 1 << 16,
                                                .block_size = kBlockSize,
                                                .num_slots = 2,
                                                .max_blocks = kPromptBlocks,
                                                .prefix_reuse = PrefixReuse::kOn});
  const SlotId slot(0);
  std::vector<int32_t> tokens = RandomTokens(4);
  if (known == Known::kAll) {
    if (!manager.Add(slot, {.tokens = tokens}).ok()) std::abort();
    if (!manager.Commit(slot, tokens).ok()) std::abort();
    if (!manager.Free(slot).ok()) std::abort();
  }
  int num_hits = 0;
  for (auto _ : state) {
    num_hits = manager.Add(slot, {.tokens = tokens})->num_tokens;
    if (!manager.Free(slot).ok()) std::abort();
  }
  state.counters["hits"] = num_hits;
}

void AddPrompt(benchmark::State& state) { AddPrompts(state, Known::kNothing); }
BENCHMARK(AddPrompt)->Unit(benchmark::kMicrosecond);

void AddPromptHit(benchmark::State& state) { AddPrompts(state, Known::kAll); }
BENCHMARK(AddPromptHit)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace reprise
