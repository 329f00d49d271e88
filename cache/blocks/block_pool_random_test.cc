// Compares the block pool with a plain model: the references, content and last release of each
// block.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/ids.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/blocks/block_pool.h"

namespace reprise {
namespace {

constexpr int kNumBlocks = 40, kNumReserved = 5, kNumSteps = 100000;

// The state of a block, derived only from the calls.
struct ModelBlock {
  int ref_count = 0;
  bool has_content = false;
  int64_t released_at = 0;
};

class RandomPool {
 public:
  explicit RandomPool(unsigned seed)
      : random_(seed),
        pool_(*BlockPool::Create({.num_blocks = kNumBlocks, .num_reserved_blocks = kNumReserved})) {
  }

  void Step() {
    switch (Below(6)) {
      case 0:
        return Allocate();
      case 1:
        return Share();
      case 2:
        return KeepOrDropContent();
      default:
        return Release();
    }
  }

  void Compare() {
    pool_.CheckInvariants();
    int num_used = 0;
    for (int i = 1; i < kNumBlocks; ++i) {
      const ModelBlock& block = model_[i];
      num_used += block.ref_count > 0;
      ASSERT_EQ(pool_.ref_count(BlockId(i)), block.ref_count) << "block " << i;
      ASSERT_EQ(pool_.has_content(BlockId(i)), block.has_content) << "block " << i;
      ASSERT_EQ(pool_.state(BlockId(i)), block.ref_count > 0 ? BlockState::kUsed
                                         : block.has_content ? BlockState::kCached
                                                             : BlockState::kFree)
          << "block " << i;
    }
    ASSERT_EQ(pool_.num_used(), num_used);
    peak_used_ = std::max(peak_used_, num_used);
    ASSERT_EQ(pool_.peak_used(), peak_used_);
  }

  int64_t num_evictions() const { return pool_.num_evictions(); }

 private:
  int Below(int n) { return static_cast<int>(random_() % n); }

  // Returns a random block for which `holds` returns true, or 0.
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

  void Allocate() {
    std::vector<BlockId> blocks(Below(12));
    const int num_kept_back = Below(2) == 0 ? 0 : kNumReserved;
    const int num_free = pool_.num_free();
    const bool fits = blocks.empty() || static_cast<int>(blocks.size()) <=
                                            num_free + pool_.num_cached() - num_kept_back;
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
      // Free blocks are allocated first, then the oldest cached blocks.
      ASSERT_EQ(block.has_content, static_cast<int>(i) >= num_free);
      for (int other = 1; block.has_content && other < kNumBlocks; ++other) {
        const ModelBlock& another = model_[other];
        if (another.ref_count > 0 || !another.has_content) continue;
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

  std::mt19937 random_;
  BlockPool pool_;
  ModelBlock model_[kNumBlocks];
  int64_t clock_ = 0;
  int peak_used_ = 0;
};

TEST(BlockPoolRandomTest, RandomCallsMatchAPlainModel) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomPool pool(seed);
  for (int step = 0; step < kNumSteps; ++step) {
    ASSERT_NO_FATAL_FAILURE(pool.Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(pool.Compare()) << "step " << step;
  }
  EXPECT_GT(pool.num_evictions(), 100);  // the run was not trivial
}

}  // namespace
}  // namespace reprise
