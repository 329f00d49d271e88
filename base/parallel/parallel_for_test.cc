#include "reprise/base/parallel/parallel_for.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr int kNumThreads = 4;

// Records the ranges of a loop and the LibTorch threads that ran them.
class Calls {
 public:
  auto body() {
    return [this](int64_t first, int64_t last) { Add(first, last); };
  }

  void Add(int64_t first, int64_t last) {
    const std::lock_guard lock(mutex_);
    shares_.emplace(first, last);
    threads_.insert(at::get_thread_num());
    all_in_parallel_region_ = all_in_parallel_region_ && at::in_parallel_region();
  }

  const std::multiset<std::pair<int64_t, int64_t>>& shares() const { return shares_; }
  const std::set<int>& threads() const { return threads_; }
  bool all_in_parallel_region() const { return all_in_parallel_region_; }

 private:
  std::mutex mutex_;
  std::multiset<std::pair<int64_t, int64_t>> shares_;
  std::set<int> threads_;
  bool all_in_parallel_region_ = true;
};

class ParallelForTest : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(kNumThreads);
    // The tests under ThreadSanitizer set OMP_THREAD_LIMIT, which may allow fewer threads.
    if (NumThreadsOfLoop() < kNumThreads)
      GTEST_SKIP() << "the environment limits the number of threads";
  }
  void TearDown() override { at::set_num_threads(num_threads_); }

  static int NumThreadsOfLoop() {
    Calls calls;
    ParallelFor(0, kNumThreads, 1, calls.body());
    return static_cast<int>(calls.threads().size());
  }

 private:
  const int num_threads_ = at::get_num_threads();
};

TEST_F(ParallelForTest, EachThreadRunsOneRange) {
  Calls calls;
  ParallelFor(10, 20, 1, calls.body());
  EXPECT_THAT(calls.shares(), ElementsAre(std::pair(10, 13), std::pair(13, 16), std::pair(16, 19),
                                          std::pair(19, 20)));
  EXPECT_THAT(calls.threads(), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(calls.all_in_parallel_region());
  EXPECT_FALSE(at::in_parallel_region());
}

TEST_F(ParallelForTest, RangesRunConcurrently) {
  absl::Barrier* const all_have_begun = new absl::Barrier(kNumThreads);
  std::set<std::thread::id> threads;
  std::mutex mutex;
  ParallelFor(0, kNumThreads, 1, [&](int64_t, int64_t) {
    {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    }
    // Block() returns once all calls wait in it. It returns true to one thread, which may delete
    // the barrier.
    if (all_have_begun->Block()) delete all_have_begun;
  });
  EXPECT_THAT(threads, SizeIs(kNumThreads));
}

TEST_F(ParallelForTest, GrainLimitsTheNumberOfRanges) {
  Calls calls;
  ParallelFor(0, 10, 4, calls.body());
  EXPECT_THAT(calls.shares(), ElementsAre(std::pair(0, 4), std::pair(4, 8), std::pair(8, 10)));
}

TEST_F(ParallelForTest, FewerIndicesThanThreads) {
  Calls calls;
  ParallelFor(0, 3, 0, calls.body());
  EXPECT_THAT(calls.shares(), ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
}

TEST_F(ParallelForTest, RangesCoverALargeLoopOnce) {
  constexpr int64_t kBegin = (int64_t{1} << 40) + 7;
  for (const int64_t size : {5, 6, 7, 8, 1000, 1023}) {
    Calls calls;
    ParallelFor(kBegin, kBegin + size, 3, calls.body());
    int64_t next = kBegin;
    for (const auto& [first, last] : calls.shares()) {
      EXPECT_EQ(first, next);
      EXPECT_LT(first, last);
      next = last;
    }
    EXPECT_EQ(next, kBegin + size);
  }
}

TEST_F(ParallelForTest, ASmallRangeIsOneCallOnTheCallingThread) {
  for (const auto& [size, grain] : {std::pair(5, 5), std::pair(1, 0)}) {
    Calls calls;
    const std::thread::id caller = std::this_thread::get_id();
    ParallelFor(3, 3 + size, grain, [&](int64_t first, int64_t last) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      calls.Add(first, last);
    });
    EXPECT_THAT(calls.shares(), ElementsAre(std::pair(3, 3 + size)));
  }
}

TEST_F(ParallelForTest, AnEmptyRangeMakesNoCall) {
  Calls calls;
  ParallelFor(3, 3, 1, calls.body());
  ParallelFor(4, 3, 1, calls.body());
  EXPECT_THAT(calls.shares(), IsEmpty());
}

TEST_F(ParallelForTest, NestedLoopMakesOneCall) {
  Calls calls;
  ParallelFor(0, 2, 1, [&](int64_t first, int64_t) {
    ParallelFor(100 * first, 100 * first + 50, 1,
                [&](int64_t begin, int64_t end) { calls.Add(begin, end); });
  });
  EXPECT_THAT(calls.shares(), UnorderedElementsAre(std::pair(0, 50), std::pair(100, 150)));
}

TEST_F(ParallelForTest, RethrowsAnExceptionAfterAllCallsHaveEnded) {
  std::atomic<int> num_calls = 0;
  const auto body = [&](int64_t first, int64_t) {
    ++num_calls;
    if (first > 0) throw std::runtime_error("share failed");
  };
  EXPECT_THROW(ParallelFor(0, kNumThreads, 1, body), std::runtime_error);
  EXPECT_EQ(num_calls, kNumThreads);
  EXPECT_FALSE(at::in_parallel_region());

  // The exception does not affect the next loop.
  Calls calls;
  ParallelFor(0, kNumThreads, 1, calls.body());
  EXPECT_THAT(calls.shares(), SizeIs(kNumThreads));
}

TEST_F(ParallelForTest, ThreadsOfTheCallerRunTheirOwnLoops) {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        ParallelFor(0, 100, 1, [&](int64_t first, int64_t last) { sum += last - first; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 3 * 20 * 100);
}

TEST(ParallelForOfOneThreadTest, IsOneCall) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  Calls calls;
  ParallelFor(0, 100, 1, calls.body());
  at::set_num_threads(num_threads);
  EXPECT_THAT(calls.shares(), ElementsAre(std::pair(0, 100)));
}

}  // namespace
}  // namespace reprise
