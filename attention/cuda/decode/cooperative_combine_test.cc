#include "reprise/attention/cuda/decode/cooperative_combine.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"

namespace reprise {
namespace {

// Simulates the KV splits of a Q tile, which arrive at one counter: each from a separate thread, or
// one after another.
class Range {
 public:
  Range(int num_splits, int num_shares)
      : num_splits_(num_splits), partials_(num_splits, 0), takers_(num_shares) {}

  uint32_t ShareOf(int split) const {
    return split < static_cast<int>(takers_.size()) ? 1u << split : 0;
  }

  // Runs the CTA of split `split`. Calls `on_look` at each poll of the counter.
  template <typename OnLook>
  void Arrive(int split, int looks, const OnLook& on_look) {
    Counter<OnLook> counter{value_, on_look};
    partials_[split] = 1;
    const JointArrival arrival = ArriveJointly(counter, num_splits_, ShareOf(split), looks);
    if (arrival.shares != 0 &&
        std::accumulate(partials_.begin(), partials_.end(), 0) != num_splits_) {
      ++num_too_early_;
    }
    for (size_t share = 0; share < takers_.size(); ++share) {
      if (arrival.shares >> share & 1) ++takers_[share];
    }
    if (IsLastToGo(arrival, num_splits_)) {
      ++num_last_;
      value_ = 0;
    }
  }
  void Arrive(int split, int looks) {
    Arrive(split, looks, [] {});
  }

  // Checks the final state. REQUIRES: all splits have arrived and left.
  void ExpectDone() const {
    for (size_t share = 0; share < takers_.size(); ++share) {
      EXPECT_EQ(takers_[share], 1)
          << "share " << share << " of " << takers_.size() << ", " << num_splits_ << " splits";
    }
    EXPECT_EQ(num_too_early_, 0);
    EXPECT_EQ(num_last_, 1);
    EXPECT_EQ(value_, 0u);
  }

  int num_taken() const { return std::accumulate(takers_.begin(), takers_.end(), 0); }

 private:
  template <typename OnLook>
  struct Counter {
    std::atomic<uint32_t>& value;
    const OnLook& on_look;

    uint32_t AddAndSynchronize(uint32_t added) { return value.fetch_add(added); }
    uint32_t Add(uint32_t added) { return value.fetch_add(added, std::memory_order_relaxed); }
    uint32_t Look() {
      on_look();
      return value.load(std::memory_order_acquire);
    }
  };

  const int num_splits_;
  std::atomic<uint32_t> value_ = 0;
  std::vector<int> partials_;  // not atomic, like the partials in device memory
  std::vector<std::atomic<int>> takers_;
  std::atomic<int> num_too_early_ = 0;
  std::atomic<int> num_last_ = 0;
};

constexpr int kUntilAll = 1 << 30;

TEST(CooperativeCombineTest, WaitingCtaCombinesItsSlice) {
  for (const int num_splits : {1, 2, 15, 16, 17, 33}) {
    Range range(num_splits, std::min(num_splits, kMaxShares));
    std::vector<std::thread> ctas;
    for (int split = 0; split < num_splits; ++split) {
      ctas.emplace_back(
          [&range, split] { range.Arrive(split, kUntilAll, [] { std::this_thread::yield(); }); });
    }
    for (std::thread& cta : ctas) cta.join();
    range.ExpectDone();
  }
}

TEST(CooperativeCombineTest, LastArriverCombinesHandedOverSlices) {
  for (const int num_splits : {1, 2, 16, 40, kMaxJointSplits}) {
    for (const int num_shares : {1, 8, kMaxShares}) {
      if (num_shares > num_splits) continue;
      Range range(num_splits, num_shares);
      for (int split = 0; split < num_splits; ++split) {
        EXPECT_EQ(range.num_taken(), 0);
        range.Arrive(split, 0);
      }
      range.ExpectDone();
    }
  }
}

TEST(CooperativeCombineTest, CtaHandsOverItsSliceIfItsPollsRunOut) {
  constexpr int kSplits = 20;
  Range range(kSplits, kMaxShares);
  int num_looks = 0;
  for (int split = kSplits - 1; split > 0; --split) {
    range.Arrive(split, 5, [&] { ++num_looks; });
    EXPECT_EQ(range.num_taken(), 0);
  }
  EXPECT_EQ(num_looks, 5 * (kMaxShares - 1));  // splits without a slice do not poll
  range.Arrive(0, 5, [&] { ++num_looks; });
  EXPECT_EQ(num_looks, 5 * (kMaxShares - 1));
  range.ExpectDone();
}

TEST(CooperativeCombineTest, CtaCombinesItsSliceIfTheLastCtaArrivesDuringItsPolls) {
  for (int arrives_at_look = 1; arrives_at_look <= 4; ++arrives_at_look) {
    Range range(2, 2);
    int num_looks = 0;
    // Split 1 arrives right before a poll of split 0, or after split 0 has left.
    range.Arrive(0, 3, [&] {
      if (++num_looks == arrives_at_look) range.Arrive(1, kUntilAll);
    });
    if (arrives_at_look > 3) range.Arrive(1, kUntilAll);
    range.ExpectDone();
    EXPECT_EQ(num_looks, std::min(arrives_at_look, 3));
  }
}

// Split 1 arrives between the last poll of split 0 and the addition by which split 0 hands its
// slice over.
TEST(CooperativeCombineTest, LastCtaMayArriveAfterTheFinalPoll) {
  struct Late {
    std::atomic<uint32_t>& value;
    int num_additions = 0;

    uint32_t AddAndSynchronize(uint32_t added) {
      if (++num_additions == 2) {  // the addition of split 0 as it leaves
        struct {
          std::atomic<uint32_t>& value;
          uint32_t AddAndSynchronize(uint32_t v) { return value.fetch_add(v); }
          uint32_t Add(uint32_t v) { return value.fetch_add(v); }
          uint32_t Look() { return value; }
        } other{value};
        const JointArrival arrival = ArriveJointly(other, 2, 0b10, 3);
        EXPECT_EQ(arrival.shares, 0b10u);
        EXPECT_FALSE(IsLastToGo(arrival, 2));
      }
      return value.fetch_add(added);
    }
    uint32_t Add(uint32_t added) { return value.fetch_add(added); }
    uint32_t Look() { return value; }
  };
  std::atomic<uint32_t> value = 0;
  Late late{value};
  const JointArrival arrival = ArriveJointly(late, 2, 0b01, 3);
  EXPECT_EQ(arrival.shares, 0b01u);
  EXPECT_TRUE(IsLastToGo(arrival, 2));
}

TEST(CooperativeCombineTest, EachSliceIsCombinedOnceUnderRandomTiming) {
  std::mt19937 random(3);
  const auto pick = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
  };
  for (int round = 0; round < 300; ++round) {
    const int num_splits = pick(1, 12);
    Range range(num_splits, pick(1, num_splits));
    // Each thread processes several splits in sequence, just like a CTA with several units. Only
    // its last split may wait.
    std::vector<int> splits(num_splits);
    std::iota(splits.begin(), splits.end(), 0);
    std::shuffle(splits.begin(), splits.end(), random);
    std::vector<std::thread> ctas;
    for (int at = 0; at < num_splits;) {
      const int end = std::min(num_splits, at + pick(1, 3));
      const int looks = pick(0, 2) == 0 ? kUntilAll : pick(0, 4);
      const std::vector<int> mine(splits.begin() + at, splits.begin() + end);
      ctas.emplace_back([&range, mine, looks] {
        for (const int split : mine) {
          range.Arrive(split, split == mine.back() ? looks : 0, [] { std::this_thread::yield(); });
        }
      });
      at = end;
    }
    for (std::thread& cta : ctas) cta.join();
    range.ExpectDone();
  }
}

}  // namespace
}  // namespace reprise
