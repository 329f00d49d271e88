#include "reprise/base/staging_ring.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <mutex>
#include <queue>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/fake_fence.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// A ring of `num_slots` slots of 8 bytes. The test completes its fences.
struct FakeRing {
  explicit FakeRing(int num_slots) : memory(8 * num_slots) {
    std::vector<std::unique_ptr<Fence>> owned;
    for (int i = 0; i < num_slots; ++i) {
      auto fence = std::make_unique<FakeFence>();
      fences.push_back(fence.get());
      owned.push_back(std::move(fence));
    }
    ring.emplace(*StagingRing::Create(absl::MakeSpan(memory), std::move(owned)));
  }

  std::vector<std::byte> memory;
  std::vector<FakeFence*> fences;
  std::optional<StagingRing> ring;
};

TEST(StagingRingTest, AcquiresSlotsInRoundRobinOrder) {
  FakeRing fake(2);
  EXPECT_EQ(fake.ring->num_slots(), 2);
  EXPECT_EQ(fake.ring->slot_bytes(), 8);
  {
    StagingSlot first = fake.ring->Acquire();
    StagingSlot second = fake.ring->Acquire();  // both are held at the same time
    EXPECT_EQ(first.offset_bytes(), 0);
    EXPECT_EQ(second.offset_bytes(), 8);
    EXPECT_EQ(second.bytes().data(), fake.memory.data() + 8);
    EXPECT_EQ(second.bytes().size(), 8);
  }
  fake.fences[0]->Pass();
  EXPECT_EQ(fake.ring->Acquire().offset_bytes(), 0);
}

TEST(StagingRingTest, SlotIsNotReusedBeforeTheReaderCompletes) {
  FakeRing fake(2);
  fake.ring->Acquire().Submit();
  fake.ring->Acquire().Submit();
  fake.fences[1]->Pass();  // out of order: slot 0 is still the next slot
  EXPECT_EQ(fake.ring->TryAcquire(), std::nullopt);
  fake.fences[0]->Pass();
  ASSERT_TRUE(fake.ring->TryAcquire().has_value());
}

TEST(StagingRingTest, DestroyingASlotArmsTheFenceOnce) {
  FakeRing fake(1);
  {
    StagingSlot slot = fake.ring->Acquire();
    StagingSlot moved = std::move(slot);
    EXPECT_EQ(fake.fences[0]->num_armings(), 0);
    moved.Submit();
    moved.Submit();
  }
  EXPECT_EQ(fake.fences[0]->num_armings(), 1);
}

TEST(StagingRingTest, SlotsSurviveAMoveOfTheRing) {
  FakeRing fake(1);
  StagingSlot slot = fake.ring->Acquire();
  StagingRing moved = *std::move(fake.ring);
  slot.Submit();
  EXPECT_EQ(moved.TryAcquire(), std::nullopt);
  fake.fences[0]->Pass();
  EXPECT_TRUE(moved.TryAcquire().has_value());
}

TEST(StagingRingTest, AcquireBlocksUntilTheFenceCompletes) {
  FakeRing fake(1);
  fake.ring->Acquire().Submit();
  std::thread reader([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fake.fences[0]->Pass();
  });
  StagingSlot slot = fake.ring->Acquire();
  EXPECT_TRUE(fake.fences[0]->Passed());
  reader.join();
}

TEST(StagingRingDeathTest, DiesIfAHeldSlotIsAcquired) {
  FakeRing fake(1);
  StagingSlot slot = fake.ring->Acquire();
  EXPECT_DEATH(fake.ring->Acquire(), "slot 0 is acquired before it is submitted");
}

TEST(StagingRingTest, RejectsMemoryThatDoesNotDivideIntoSlots) {
  std::vector<std::byte> memory(9);
  const auto create = [&](int num_fences) {
    std::vector<std::unique_ptr<Fence>> fences;
    for (int i = 0; i < num_fences; ++i) fences.push_back(std::make_unique<FakeFence>());
    return StagingRing::Create(absl::MakeSpan(memory), std::move(fences)).status();
  };
  EXPECT_TRUE(create(3).ok());
  EXPECT_THAT(create(2).ToString(), HasSubstr("expected a positive multiple of 2 bytes, got 9"));
  EXPECT_THAT(create(0).ToString(), HasSubstr("expected at least 1, got 0"));
  memory.clear();
  EXPECT_THAT(create(1).ToString(), HasSubstr("got 0"));
  std::vector<std::unique_ptr<Fence>> null_fence(1);
  memory.resize(1);
  EXPECT_THAT(
      StagingRing::Create(absl::MakeSpan(memory), std::move(null_fence)).status().ToString(),
      HasSubstr("got null at 0"));
}

// A consumer that runs submitted work in order on a separate thread, after Start().
class DelayedStream {
 public:
  DelayedStream() : thread_([this] { Run(); }) {}
  ~DelayedStream() {
    Submit(nullptr);
    thread_.join();
  }

  void Submit(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push(std::move(work));
    }
    changed_.notify_one();
  }

  // Starts the work. No work runs before this call.
  void Start() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return started_ && !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop();
      }
      if (work == nullptr) return;
      work();
    }
  }

  std::mutex mutex_;  // guards started_ and queue_
  std::condition_variable changed_;
  bool started_ = false;
  std::queue<std::function<void()>> queue_;
  std::thread thread_;  // declared last, because the thread uses the other members
};

// Completes when the stream reaches it, like a CUDA event.
class StreamFence : public FakeFence {
 public:
  explicit StreamFence(DelayedStream* stream) : stream_(stream) {}
  void Arm() override {
    FakeFence::Arm();
    stream_->Submit([this] { Pass(); });
  }

 private:
  DelayedStream* stream_;
};

// A fence that never waits, like a pinned buffer without events.
class NoFence : public Fence {
 public:
  void Arm() override {}
  bool Passed() override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};

// Sends the numbers 0..num_steps-1 through a ring of 3 slots to `stream`. Returns the numbers that
// the stream read, with -1 for a slot that was partly overwritten.
template <typename MakeFence>
std::vector<int> SendThroughRing(int num_steps, DelayedStream& stream, MakeFence make_fence,
                                 std::function<void(int)> before_step) {
  constexpr int kNumSlots = 3, kInts = 64;
  std::vector<std::byte> memory(kNumSlots * kInts * sizeof(int));
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < kNumSlots; ++i) fences.push_back(make_fence());
  StagingRing ring = *StagingRing::Create(absl::MakeSpan(memory), std::move(fences));

  std::vector<int> received;
  std::promise<void> done;
  for (int step = 0; step < num_steps; ++step) {
    before_step(step);
    StagingSlot slot = ring.Acquire();
    int* ints = reinterpret_cast<int*>(slot.bytes().data());
    std::fill_n(ints, kInts, step);
    stream.Submit([ints, &received] {
      const bool whole = std::all_of(ints, ints + kInts, [&](int x) { return x == ints[0]; });
      received.push_back(whole ? ints[0] : -1);
    });
  }
  stream.Submit([&] { done.set_value(); });
  stream.Start();
  done.get_future().wait();
  return received;
}

TEST(StagingRingTest, DelayedReaderReadsTheDataOfTheSameStep) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr int kNumSteps = 2000;
  DelayedStream stream;
  stream.Start();
  std::vector<int> received = SendThroughRing(
      kNumSteps, stream, [&] { return std::make_unique<StreamFence>(&stream); },
      [&](int) {
        if (random() % 16 == 0) {
          stream.Submit([] { std::this_thread::sleep_for(std::chrono::microseconds(300)); });
        }
      });
  ASSERT_EQ(received.size(), kNumSteps);
  for (int i = 0; i < kNumSteps; ++i) ASSERT_EQ(received[i], i);
}

// Shows that the test above can detect the defect that the ring prevents.
TEST(StagingRingTest, WithoutFencesADelayedReaderReadsALaterStep) {
  DelayedStream stream;  // starts after all steps have been written
  std::vector<int> received = SendThroughRing(
      6, stream, [] { return std::make_unique<NoFence>(); }, [](int) {});
  EXPECT_THAT(received,
              testing::ElementsAre(3, 4, 5, 3, 4, 5));  // 3 slots: the first three numbers are lost
}

}  // namespace
}  // namespace reprise
