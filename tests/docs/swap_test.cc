// The code of docs/cache.md, compiled and run. See concepts_test.cc for the markers.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/passed_fence.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/ops/kv_swapper.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {
namespace {

using ::testing::SizeIs;

// Two sequences with one prompt. The second sequence finds two blocks of the first, which decodes.
absl::Status StepPage() {
  const std::vector<int32_t> prompt(40, 7);
  // [cache_manager begin]
  REPRISE_ASSIGN_OR_RETURN(BlockManager manager,
                           BlockManager::Create({.num_blocks = 4096,
                                                 .block_size = 16,
                                                 .num_slots = 256,
                                                 .max_blocks = 512,
                                                 .prefix_reuse = PrefixReuse::kOn}));
  // [cache_manager end]
  std::vector<SlotAppend> decodes;
  for (const int index : {0, 1}) {
    const SlotId slot(index);
    std::vector<SlotJoin> joins;
    std::vector<ScheduledRow> rows;
    if (index == 1) rows.push_back({.slot = SlotId(0)});
    // [cache_step begin]
    // Admit: the sequence joins with the tokens that were found. The row has the remaining tokens.
    REPRISE_ASSIGN_OR_RETURN(const PromptHits hits, manager.Add(slot, {.tokens = prompt}));
    const absl::Span<const int32_t> prompt_from_hits_on =
        absl::MakeConstSpan(prompt).subspan(hits.num_tokens);
    joins.push_back(JoinOf(slot, hits, prompt.size()));
    rows.push_back({.slot = slot, .tokens = prompt_from_hits_on});
    // Decode: room for the next token of every running sequence, all or nothing.
    REPRISE_RETURN_IF_ERROR(manager.AppendBatch(decodes));
    // Launch: joins, updates of the tables, copies of blocks, then the rows.
    const ScheduledBatch step = {.joins = joins,
                                 .updates = manager.TakeUpdates(),
                                 .copies = manager.TakeCopies(),
                                 .rows = rows};
    // After the step: commit the tokens that it computed. Tokens that were found are committed already.
    REPRISE_RETURN_IF_ERROR(manager.Commit(slot, prompt_from_hits_on));
    // [cache_step end]
    EXPECT_EQ(hits.num_tokens, index == 0 ? 0 : 32);
    EXPECT_THAT(step.rows.back().tokens, SizeIs(index == 0 ? 40 : 8));
    EXPECT_THAT(step.updates, SizeIs(3));
    EXPECT_TRUE(step.copies.empty());
    EXPECT_EQ(manager.num_tokens(slot), 40);
    EXPECT_EQ(manager.num_committed(slot), 40);
    decodes.push_back({.slot = slot});
  }
  EXPECT_EQ(manager.num_tokens(SlotId(0)), 41);
  EXPECT_EQ(manager.pool().num_used(), 4);
  manager.CheckInvariants();
  return absl::OkStatus();
}

TEST(CachePageTest, AdmitsTheSamePromptTwiceAsThePageDoes) {
  const absl::Status status = StepPage();
  EXPECT_TRUE(status.ok()) << status;
}

absl::Status Exchange(SwapStore& store, KvSwapper* swapper, SlotId slot, SequenceId id,
                      SlotId other_slot, SequenceId other) {
  // [swap begin]
  REPRISE_RETURN_IF_ERROR(store.PlanOut(slot, id));  // plans only; no copy yet
  REPRISE_ASSIGN_OR_RETURN(const SwapTicket out, swapper->SwapOut(store.copies_out()));
  REPRISE_RETURN_IF_ERROR(store.PlanIn(other, other_slot));
  REPRISE_ASSIGN_OR_RETURN(const SwapTicket in, swapper->SwapIn(store.copies_in()));
  REPRISE_RETURN_IF_ERROR(swapper->Await(in));  // the next step waits for what came in
  store.Launched();                             // `slot` is empty now
  // [swap end]
  EXPECT_TRUE(swapper->Passed(out));
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Fence>> Fences() {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 2; ++i) fences.push_back(std::make_unique<PassedFence>());
  return fences;
}

absl::Status SwapPage() {
  REPRISE_ASSIGN_OR_RETURN(
      BlockManager manager,
      BlockManager::Create({.num_blocks = 8, .block_size = 4, .num_slots = 3, .max_blocks = 4}));
  REPRISE_ASSIGN_OR_RETURN(const KvLayout layout, KvLayout::Create({.num_blocks = 8,
                                                                    .block_size = 4,
                                                                    .num_kv_heads = 1,
                                                                    .head_dim_qk = 8,
                                                                    .head_dim_v = 8}));
  REPRISE_ASSIGN_OR_RETURN(const KvCache cache, KvCache::Create(layout, c10::kCPU));
  REPRISE_ASSIGN_OR_RETURN(const auto swapper, KvSwapper::Create(cache, {.num_host_blocks = 8}));
  REPRISE_ASSIGN_OR_RETURN(SwapStore store,
                           SwapStore::Create({.num_host_blocks = 8}, &manager, Fences()));
  for (int slot = 0; slot < 2; ++slot) {
    REPRISE_RETURN_IF_ERROR(manager.Add(SlotId(slot), 5));
    REPRISE_RETURN_IF_ERROR(manager.Commit(SlotId(slot), {1, 2, 3, 4, 5}));
  }
  const SequenceId first(10), second(11);
  REPRISE_RETURN_IF_ERROR(store.PlanOut(SlotId(1), second));
  REPRISE_RETURN_IF_ERROR(swapper->SwapOut(store.copies_out()).status());
  store.Launched();
  REPRISE_RETURN_IF_ERROR(
      Exchange(store, swapper.get(), SlotId(0), first, /*other_slot=*/SlotId(2), second));
  EXPECT_FALSE(manager.contains(SlotId(0)));
  EXPECT_FALSE(manager.contains(SlotId(1)));
  EXPECT_EQ(manager.num_committed(SlotId(2)), 5);
  EXPECT_EQ(store.state(first), SwapState::kStored);
  EXPECT_FALSE(store.state(second).has_value());
  store.CheckInvariants();
  manager.CheckInvariants();
  return absl::OkStatus();
}

TEST(CachePageTest, OneSequenceLeavesAndAnotherReturns) {
  const absl::Status status = SwapPage();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace reprise
