#include "reprise/cache/blocks/fence_queue.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/fence.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/fake_fence.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// A queue over fences that the test completes.
struct FakeQueue {
  explicit FakeQueue(int num_fences) : queue(*FenceQueue::Create(MakeFences(num_fences))) {}

  std::vector<std::unique_ptr<Fence>> MakeFences(int num_fences) {
    std::vector<std::unique_ptr<Fence>> made;
    for (int i = 0; i < num_fences; ++i) {
      auto fence = std::make_unique<FakeFence>();
      fences.push_back(fence.get());
      made.push_back(std::move(fence));
    }
    return made;
  }

  std::vector<FakeFence*> fences;
  FenceQueue queue;
};

TEST(FenceQueueTest, EventsCompleteInOrder) {
  FakeQueue fake(3);
  EXPECT_EQ(fake.queue.Arm(), 1);
  EXPECT_EQ(fake.queue.Arm(), 2);
  EXPECT_EQ(fake.queue.Poll(), 0);
  fake.fences[1]->Pass();
  EXPECT_EQ(fake.queue.Poll(), 0);  // the second does not imply the first
  fake.fences[0]->Pass();
  EXPECT_EQ(fake.queue.Poll(), 2);
}

TEST(FenceQueueTest, PollReturnsZeroBeforeTheFirstEvent) {
  FakeQueue fake(2);
  EXPECT_EQ(fake.queue.Poll(), 0);
}

TEST(FenceQueueTest, FencesAreReusedInOrder) {
  FakeQueue fake(2);
  for (int64_t event = 1; event <= 6; ++event) {
    EXPECT_EQ(fake.queue.Arm(), event);
    fake.fences[(event - 1) % 2]->Pass();
    EXPECT_EQ(fake.queue.Poll(), event);
  }
  EXPECT_EQ(fake.fences[0]->num_armings(), 3);
}

TEST(FenceQueueTest, NewestFenceIsArmedAgainIfAllFencesAreArmed) {
  FakeQueue fake(2);
  for (int i = 0; i < 4; ++i) fake.queue.Arm();  // fence 0: 1; fence 1: 2, then 2..4
  EXPECT_EQ(fake.fences[0]->num_armings(), 1);
  EXPECT_EQ(fake.fences[1]->num_armings(), 3);
  fake.fences[0]->Pass();
  EXPECT_EQ(fake.queue.Poll(), 1);
  EXPECT_EQ(fake.queue.Arm(), 5);  // on fence 0: the other events are no longer delayed
  fake.fences[1]->Pass();
  EXPECT_EQ(fake.queue.Poll(), 4);
}

TEST(FenceQueueTest, ArmAndPollDoNotAllocate) {
  FakeQueue fake(2);
  const AllocationCounter allocations;
  for (int i = 0; i < 100; ++i) {
    fake.queue.Arm();
    if (i % 3 == 0) fake.fences[i % 2]->Pass();
    fake.queue.Poll();
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(FenceQueueTest, RejectsTooFewFencesAndNullFences) {
  const auto message = [](std::vector<std::unique_ptr<Fence>> fences) {
    const absl::Status status = FenceQueue::Create(std::move(fences)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({}), HasSubstr("fences must be at least 2, got 0"));
  std::vector<std::unique_ptr<Fence>> fences(2);
  fences[0] = std::make_unique<FakeFence>();
  EXPECT_THAT(message(std::move(fences)), HasSubstr("fences[1] must not be null"));
}

// A consumer that works in order, and fences that query it: the reference for the events.
class Consumer {
 public:
  class ConsumerFence : public Fence {
   public:
    explicit ConsumerFence(Consumer* consumer) : consumer_(consumer) {}
    void Arm() override { position_ = consumer_->num_submitted; }
    bool Passed() override { return consumer_->num_done >= position_; }
    absl::Status Wait() override { return absl::OkStatus(); }

   private:
    Consumer* consumer_;
    int64_t position_ = 0;
  };

  int64_t num_submitted = 0;
  int64_t num_done = 0;
};

TEST(FenceQueueTest, NoEventCompletesBeforeItsWorkForAnyNumberOfFences) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const int num_fences : {2, 3, 50}) {
    Consumer consumer;
    std::vector<std::unique_ptr<Fence>> fences;
    for (int i = 0; i < num_fences; ++i) {
      fences.push_back(std::make_unique<Consumer::ConsumerFence>(&consumer));
    }
    FenceQueue queue = *FenceQueue::Create(std::move(fences));
    std::vector<int64_t> positions = {0};  // by event
    for (int step = 0; step < 5000; ++step) {
      const int action = static_cast<int>(random() % 7);
      if (action < 3) {
        ++consumer.num_submitted;
        ASSERT_EQ(queue.Arm(), static_cast<int64_t>(positions.size()));
        positions.push_back(consumer.num_submitted);
      } else {
        consumer.num_done += consumer.num_done < consumer.num_submitted;
      }
      const int64_t passed = queue.Poll();
      ASSERT_LE(positions[passed], consumer.num_done);
      if (consumer.num_done == consumer.num_submitted) {
        ASSERT_EQ(passed, static_cast<int64_t>(positions.size()) - 1);
      }
    }
  }
}

}  // namespace
}  // namespace reprise
