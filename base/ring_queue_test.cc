#include "reprise/base/ring_queue.h"

#include <cstdint>
#include <deque>
#include <random>

#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

TEST(RingQueueTest, IsFirstInFirstOutAcrossItsEnd) {
  RingQueue<int> queue(2);
  queue.push_back(1);
  queue.push_back(2);
  queue.pop_front();
  queue.push_back(3);  // at the memory's start
  EXPECT_EQ(queue.front(), 2);
  EXPECT_EQ(queue.back(), 3);
  EXPECT_EQ(queue[0], 2);
  EXPECT_EQ(queue[1], 3);
}

TEST(RingQueueTest, GrowsWhenItIsFullAndKeepsTheOrder) {
  RingQueue<int> queue(0);
  for (int i = 0; i < 100; ++i) queue.push_back(i);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(queue.front(), i);
    queue.pop_front();
  }
  EXPECT_TRUE(queue.empty());
}

TEST(RingQueueTest, AllocatesNothingOnceItHasGrown) {
  RingQueue<int64_t> queue(4);
  const AllocationCounter allocations;
  for (int i = 0; i < 1000; ++i) {
    queue.push_back(i);
    if (queue.size() == 4) queue.pop_front();
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_EQ(queue.num_bytes(), 32);  // 4 of 8 bytes
}

TEST(RingQueueTest, AgreesWithADequeOverRandomCalls) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  RingQueue<int> queue(3);
  std::deque<int> model;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 || model.empty()) {
      queue.push_back(i);
      model.push_back(i);
    } else {
      queue.pop_front();
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), static_cast<int64_t>(model.size()));
    if (model.empty()) continue;
    ASSERT_EQ(queue.front(), model.front());
    ASSERT_EQ(queue.back(), model.back());
    const size_t any = random() % model.size();
    ASSERT_EQ(queue[any], model[any]);
  }
}

TEST(RingQueueDeathTest, TakingFromAnEmptyQueueIsABrokenInvariant) {
  RingQueue<int> queue(2);
  EXPECT_DEATH(queue.pop_front(), "size_ > 0");
  EXPECT_DEATH(queue.front(), "size_ > 0");
}

}  // namespace
}  // namespace reprise
