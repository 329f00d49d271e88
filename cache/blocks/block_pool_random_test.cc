// Compares the block pool with a plain model: the ticket and time of each block's last release.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/fence.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/blocks/block_pool.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 40, kNumReserved = 5, kNumQueues = 2, kNumSteps = 50000;

// Something that works off what it is given, in order.
struct Consumer {
  int64_t num_submitted = 0;
  int64_t num_done = 0;
};

class ConsumerFence : public Fence {
 public:
  explicit ConsumerFence(Consumer* consumer) : consumer_(consumer) {}
  void Arm() override { position_ = consumer_->num_submitted; }
  bool Passed() override { return consumer_->num_done >= position_; }
  absl::Status Wait() override {
    consumer_->num_done = std::max(consumer_->num_done, position_);
    return absl::OkStatus();
  }

 private:
  Consumer* consumer_;
  int64_t position_ = 0;
};

// What is known of a block from its calls alone.
struct ModelBlock {
  int ref_count = 0;
  bool has_content = false;
  int64_t released_at = 0;
  int64_t position[kNumQueues] = {};  // it waits until the consumer has done so much
};

class RandomPool {
 public:
  RandomPool(unsigned seed, int num_fences)
      : random_(seed),
        pool_(*BlockPool::Create({.num_blocks = kNumBlocks, .num_reserved_blocks = kNumReserved})),
        // Where each ticket has a fence of its own, blocks come free as early as they may.
        is_exact_(num_fences > kMaxInFlight) {
    for (Consumer& consumer : consumers_) {
      std::vector<std::unique_ptr<Fence>> fences;
      for (int i = 0; i < num_fences; ++i) {
        fences.push_back(std::make_unique<ConsumerFence>(&consumer));
      }
      EXPECT_TRUE(pool_.AddFenceQueue(std::move(fences)).ok());
    }
  }

  void Step() {
    switch (Below(8)) {
      case 0:
        return Allocate();
      case 1:
        return Share();
      case 2:
      case 3:
        return Release();
      case 4:
        return ReleaseUnderTicket();
      case 5:
        return KeepOrDropContent();
      case 6:
        return Advance();
      default:
        return Below(20) == 0 ? WaitForSome() : pool_.Poll();
    }
  }

  void Compare() {
    pool_.CheckInvariants();
    for (int i = 1; i < kNumBlocks; ++i) {
      const ModelBlock& block = model_[i];
      ASSERT_EQ(pool_.ref_count(BlockId(i)), block.ref_count) << "block " << i;
      ASSERT_EQ(pool_.has_content(BlockId(i)), block.has_content) << "block " << i;
      const BlockState state = pool_.state(BlockId(i));
      ASSERT_EQ(state == BlockState::kUsed, block.ref_count > 0) << "block " << i;
      if (block.ref_count > 0) continue;
      // Before a poll, and with shared fences, it may wait for longer than it has to.
      if (Waits(block)) {
        ASSERT_EQ(state, BlockState::kFenced) << "block " << i;
      }
      if (state == BlockState::kFenced) continue;
      ASSERT_EQ(state, block.has_content ? BlockState::kCached : BlockState::kFree);
    }
    if (!is_exact_) return;
    pool_.Poll();
    for (int i = 1; i < kNumBlocks; ++i) {
      const bool waits = model_[i].ref_count == 0 && Waits(model_[i]);
      ASSERT_EQ(pool_.state(BlockId(i)) == BlockState::kFenced, waits) << "block " << i;
    }
  }

  int64_t num_evictions() const { return pool_.num_evictions(); }

 private:
  static constexpr int kMaxInFlight = 20;

  int Below(int n) { return static_cast<int>(random_() % n); }

  bool Waits(const ModelBlock& block) const {
    for (int queue = 0; queue < kNumQueues; ++queue) {
      if (block.position[queue] > consumers_[queue].num_done) return true;
    }
    return false;
  }

  // A random block that `holds`, or 0.
  template <typename Predicate>
  int Any(const Predicate& holds) {
    std::vector<int> blocks;
    for (int i = 1; i < kNumBlocks; ++i) {
      if (holds(model_[i])) blocks.push_back(i);
    }
    return blocks.empty() ? 0 : blocks[Below(static_cast<int>(blocks.size()))];
  }
  int AnyUsed() {
    return Any([](const ModelBlock& block) { return block.ref_count > 0; });
  }

  // How many unused blocks that wait for nothing there are, as the pool sees it.
  int CountReady() const {
    int num_ready = 0;
    for (int i = 1; i < kNumBlocks; ++i) {
      const BlockState state = pool_.state(BlockId(i));
      num_ready += state == BlockState::kFree || state == BlockState::kCached;
    }
    return num_ready;
  }

  void Allocate() {
    std::vector<BlockId> blocks(Below(8));
    const int num_kept_back = Below(2) == 0 ? 0 : kNumReserved;
    pool_.Poll();
    const int num_ready = CountReady();
    const int num_free = pool_.num_free();
    const bool fits =
        blocks.empty() || static_cast<int>(blocks.size()) <= num_ready - num_kept_back;
    const absl::Status check = num_kept_back == 0 ? pool_.CheckAllocatableReserved(blocks.size())
                                                  : pool_.CheckAllocatable(blocks.size());
    const absl::Status status = num_kept_back == 0 ? pool_.AllocateReserved(absl::MakeSpan(blocks))
                                                   : pool_.Allocate(absl::MakeSpan(blocks));
    ASSERT_EQ(check.ok(), fits) << check;
    ASSERT_EQ(status.ok(), fits) << status;
    if (!fits) return;
    for (size_t i = 0; i < blocks.size(); ++i) {
      ModelBlock& block = model_[blocks[i].value()];
      ASSERT_NE(blocks[i], kNullBlock);
      ASSERT_EQ(block.ref_count, 0) << "block " << blocks[i];
      ASSERT_FALSE(Waits(block)) << "block " << blocks[i] << " is still being used";
      // Free ones first; of the cached ones that wait for nothing the oldest.
      ASSERT_EQ(block.has_content, static_cast<int>(i) >= num_free);
      for (int other = 1; block.has_content && other < kNumBlocks; ++other) {
        const ModelBlock& another = model_[other];
        if (pool_.state(BlockId(other)) != BlockState::kCached) continue;
        ASSERT_LE(block.released_at, another.released_at) << blocks[i] << " before " << other;
      }
      block = {.ref_count = 1};
    }
  }

  void Share() {
    const int block =
        Any([](const ModelBlock& block) { return block.ref_count > 0 || block.has_content; });
    if (block == 0) return;
    pool_.Share(BlockId(block));
    ++model_[block].ref_count;
  }

  void Release() {
    const int block = AnyUsed();
    if (block == 0) return;
    pool_.Release(BlockId(block));
    --model_[block].ref_count;
    model_[block].released_at = ++clock_;
  }

  void ReleaseUnderTicket() {
    const int queue = Below(kNumQueues);
    Consumer& consumer = consumers_[queue];
    consumer.num_done = std::max(consumer.num_done, consumer.num_submitted - kMaxInFlight + 1);
    ++consumer.num_submitted;
    const FenceTicket ticket = pool_.Arm(FenceQueueId(queue));
    for (int i = Below(4); i >= 0; --i) {
      const int block = AnyUsed();
      if (block == 0) return;
      pool_.Release(BlockId(block), ticket);
      --model_[block].ref_count;
      model_[block].released_at = ++clock_;
      model_[block].position[queue] = consumer.num_submitted;
    }
  }

  void KeepOrDropContent() {
    if (Below(4) > 0) {
      const int block = AnyUsed();
      if (block == 0) return;
      pool_.KeepContent(BlockId(block));
      model_[block].has_content = true;
    } else {
      const int block = 1 + Below(kNumBlocks - 1);
      pool_.DropContent(BlockId(block));
      model_[block].has_content = false;
    }
  }

  void Advance() {
    Consumer& consumer = consumers_[Below(kNumQueues)];
    consumer.num_done = std::min(consumer.num_submitted, consumer.num_done + Below(4));
  }

  void WaitForSome() {
    const int num_blocks = Below(kNumBlocks);
    const absl::Status status = pool_.WaitForAllocatable(num_blocks);
    if (status.ok()) {
      ASSERT_LE(num_blocks, pool_.num_allocatable());
    } else {
      ASSERT_TRUE(pool_.num_fenced() == 0 || absl::IsInvalidArgument(status)) << status;
    }
  }

  std::mt19937 random_;
  Consumer consumers_[kNumQueues];
  BlockPool pool_;
  bool is_exact_;
  ModelBlock model_[kNumBlocks];
  int64_t clock_ = 0;
};

class BlockPoolRandomTest : public testing::TestWithParam<int> {};

TEST_P(BlockPoolRandomTest, AgreesWithAModelOverRandomCalls) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomPool pool(seed, GetParam());
  for (int step = 0; step < kNumSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(pool.Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(pool.Compare()) << "step " << step;
  }
  EXPECT_GT(pool.num_evictions(), 100);  // it was no idle run
}

INSTANTIATE_TEST_SUITE_P(Fences, BlockPoolRandomTest, testing::Values(2, 5, 30));

}  // namespace
}  // namespace reprise
