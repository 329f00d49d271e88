// Tests the bookkeeping of swapped sequences together with the bytes of their blocks: BlockManager,
// SwapStore and KvSwapper over one cache, compared with the values that every sequence wrote.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "reprise/base/fence.h"
#include "reprise/base/passed_fence.h"
#include "reprise/cache/blocks/block_manager.h"
#include "reprise/cache/blocks/swap_store.h"
#include "reprise/cache/ops/kv_swapper.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

constexpr int kSlots = 5;
constexpr int kBlockSize = 4;
constexpr int kLayers = 2;

// On the CPU, a swap completes before the call returns.
std::vector<std::unique_ptr<Fence>> Fences() {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 2; ++i) fences.push_back(std::make_unique<PassedFence>());
  return fences;
}

class SwapRun {
 public:
  explicit SwapRun(unsigned seed)
      : random_(seed),
        cache_(*KvCache::Create(*KvLayout::Create({.num_layers = kLayers,
                                                   .num_blocks = 24,
                                                   .block_size = kBlockSize,
                                                   .num_kv_heads = 2,
                                                   .head_dim_qk = 8,
                                                   .head_dim_v = 4}),
                                at::kCPU)),
        manager_(*BlockManager::Create(
            {.num_blocks = 24, .block_size = kBlockSize, .num_slots = kSlots, .max_blocks = 8})),
        store_(*SwapStore::Create({.num_host_blocks = 30}, &manager_, Fences())),
        swapper_(*KvSwapper::Create(cache_, {.num_host_blocks = 30})) {}

  // Random steps; every sequence on the device is read back after each.
  void Run(int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      const SlotId slot(static_cast<int>(random_() % kSlots));
      if (!manager_.contains(slot)) {
        random_() % 2 == 0 ? ComeBack(slot) : Begin(slot);
      } else {
        switch (random_() % 4) {
          case 0:
            Leave(slot);
            break;
          case 1:
            if (random_() % 3 == 0) End(slot);
            break;
          default:
            Write(slot, 1 + static_cast<int>(random_() % 5));
        }
      }
      manager_.TakeUpdates();
      store_.Poll();
      manager_.CheckInvariants();
      store_.CheckInvariants();
      for (const auto& [id, in] : running_) ExpectContent(id, in);
    }
  }

  int num_swaps() const { return num_swaps_; }

 private:
  // The values of layer `layer` for a token of a sequence.
  static float ValueOf(SequenceId id, int position, int layer) {
    return static_cast<float>(id.value() * 1000 + position) + 0.25f * static_cast<float>(layer);
  }

  at::Tensor TokenAt(int layer, int tensor, SlotId slot, int position) const {
    const BlockId block = manager_.blocks(slot)[position / kBlockSize];
    return cache_.tensors(layer)[tensor].select(0, block.value()).select(0, position % kBlockSize);
  }

  void Begin(SlotId slot) {
    const SequenceId id(++last_id_);
    if (!manager_.Add(slot, 0).ok()) return;
    running_[id] = slot;
    Write(slot, 1 + static_cast<int>(random_() % 9));
  }

  void Write(SlotId slot, int num_tokens) {
    const int first = manager_.num_tokens(slot);
    const absl::Status appended = manager_.Append(slot, num_tokens);
    if (!appended.ok()) return;  // the pool is full, or the row is full
    for (int position = first; position < first + num_tokens; ++position) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int tensor = 0; tensor < 2; ++tensor) {
          TokenAt(layer, tensor, slot, position).fill_(ValueOf(IdIn(slot), position, layer));
        }
      }
    }
    std::vector<int32_t> tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), first);
    ASSERT_TRUE(manager_.Commit(slot, tokens).ok());
  }

  void Leave(SlotId slot) {
    const SequenceId id = IdIn(slot);
    if (!store_.PlanOut(slot, id).ok()) return;  // host memory is full
    ASSERT_TRUE(swapper_->SwapOut(store_.copies_out()).ok());
    store_.Launched();
    stored_[id] = manager_.contains(slot) ? -1 : store_.num_tokens(id);
    running_.erase(id);
    ++num_swaps_;
  }

  void ComeBack(SlotId slot) {
    if (stored_.empty()) return;
    const auto it = std::next(stored_.begin(), random_() % stored_.size());
    const SequenceId id = it->first;
    if (!store_.PlanIn(id, slot).ok()) return;  // the device is full
    const absl::StatusOr<SwapTicket> ticket = swapper_->SwapIn(store_.copies_in());
    ASSERT_TRUE(ticket.ok());
    ASSERT_TRUE(swapper_->Await(*ticket).ok());
    store_.Launched();
    ASSERT_EQ(manager_.num_tokens(slot), it->second);
    running_[id] = slot;
    stored_.erase(it);
    ++num_swaps_;
  }

  void End(SlotId slot) {
    running_.erase(IdIn(slot));
    ASSERT_TRUE(manager_.Free(slot).ok());
  }

  SequenceId IdIn(SlotId slot) const {
    for (const auto& [id, in] : running_) {
      if (in == slot) return id;
    }
    ADD_FAILURE() << "no sequence in slot " << slot;
    return {};
  }

  void ExpectContent(SequenceId id, SlotId slot) const {
    for (int position = 0; position < manager_.num_tokens(slot); ++position) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int tensor = 0; tensor < 2; ++tensor) {
          const at::Tensor token = TokenAt(layer, tensor, slot, position);
          ASSERT_TRUE(token.eq(ValueOf(id, position, layer)).all().item<bool>())
              << "sequence " << id << ", position " << position << ", layer " << layer;
        }
      }
    }
  }

  std::mt19937 random_;
  KvCache cache_;
  BlockManager manager_;
  SwapStore store_;
  std::unique_ptr<KvSwapper> swapper_;
  std::map<SequenceId, SlotId> running_;
  std::map<SequenceId, int> stored_;  // number of tokens by sequence
  int64_t last_id_ = 0;
  int num_swaps_ = 0;
};

TEST(SequenceSwapTest, SequencesReturnToAnySlotBitwiseIdentical) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SwapRun run(seed);
    run.Run(500);
    EXPECT_GT(run.num_swaps(), 60);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace reprise
