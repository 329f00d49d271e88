#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/cuda_fence.h"
#include "reprise/base/fence.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/base/staging_ring.h"
#include "reprise/base/testing/stream_gate.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

class CudaFenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      cudaGetLastError();
      GTEST_SKIP() << "no GPU on this machine";
    }
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }

  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an earlier CUDA error is still pending";
  }

  std::unique_ptr<Fence> MakeFence() const {
    absl::StatusOr<std::unique_ptr<Fence>> fence = MakeCudaFence({.stream = stream_});
    EXPECT_TRUE(fence.ok()) << fence.status();
    return *std::move(fence);
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaFenceTest, UnarmedFenceIsComplete) {
  const auto fence = MakeFence();
  StreamGate gate(stream_);
  EXPECT_TRUE(fence->Passed());
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
}

TEST_F(CudaFenceTest, CompletesOnlyWhenTheStreamReachesTheFence) {
  const auto fence = MakeFence();
  StreamGate gate(stream_);
  fence->Arm();
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(fence->Passed());
  gate.Open();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  EXPECT_TRUE(fence->Passed());
}

TEST_F(CudaFenceTest, WaitBlocksUntilTheStreamReachesTheFence) {
  for (const auto waiting : {CudaFenceOptions::Waiting::kSpin, CudaFenceOptions::Waiting::kSleep}) {
    const auto fence = *MakeCudaFence({.stream = stream_, .waiting = waiting});
    StreamGate gate(stream_);
    fence->Arm();
    std::atomic<bool> is_open = false;
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      is_open = true;
      gate.Open();
    });
    EXPECT_EQ(fence->Wait(), absl::OkStatus());
    EXPECT_TRUE(is_open);
    opener.join();
  }
}

TEST_F(CudaFenceTest, LaterWorkDoesNotDelayTheFence) {
  const auto fence = MakeFence();
  fence->Arm();
  StreamGate gate(stream_);  // closes the stream after the fence
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  EXPECT_TRUE(fence->Passed());
}

TEST_F(CudaFenceTest, SecondArmReplacesTheFirst) {
  const auto fence = MakeFence();
  fence->Arm();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
  StreamGate gate(stream_);
  fence->Arm();
  EXPECT_FALSE(fence->Passed());
  gate.Open();
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
}

TEST_F(CudaFenceTest, MayBeDestroyedBeforeTheStreamReachesTheFence) {
  StreamGate gate(stream_);
  {
    const auto fence = MakeFence();
    fence->Arm();
  }
  gate.Open();
}

TEST_F(CudaFenceTest, FenceArmedInsideACaptureCompletesAndStaysUsable) {
  const auto fence = MakeFence();
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  fence->Arm();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_TRUE(fence->Passed());
  fence->Arm();  // the fence is usable again
  EXPECT_EQ(fence->Wait(), absl::OkStatus());
}

// Detects a staging buffer that is overwritten before the copy of its step has run. Each step
// stages different numbers, and a copy on the stream reads them.
class StagingHammer {
 public:
  static constexpr int kNumSlots = 3;
  static constexpr int kWords = 32'768;  // too much to be passed with the copy's command
  static constexpr int64_t kSlotBytes = kWords * sizeof(int32_t);

  StagingHammer(cudaStream_t stream, int num_steps)
      : stream_(stream),
        num_steps_(num_steps),
        memory_(*MappedBuffer::AllocateMapped(kNumSlots * kSlotBytes)) {
    EXPECT_EQ(cudaMalloc(&seen_, num_steps * kSlotBytes), cudaSuccess);
  }
  ~StagingHammer() { EXPECT_EQ(cudaFree(seen_), cudaSuccess); }

  // Stages step i in `bytes` and enqueues its reader.
  void Step(int i, absl::Span<std::byte> bytes, int64_t offset_bytes) {
    auto* const words = reinterpret_cast<int32_t*>(bytes.data());
    for (int w = 0; w < kWords; ++w) words[w] = i * kWords + w;
    EXPECT_EQ(cudaMemcpyAsync(static_cast<std::byte*>(seen_) + i * kSlotBytes,
                              memory_.device<std::byte>() + offset_bytes, kSlotBytes,
                              cudaMemcpyDefault, stream_),
              cudaSuccess);
  }

  // Number of steps whose reader read a number other than the staged one.
  int NumBroken() const {
    std::vector<int32_t> seen(static_cast<size_t>(num_steps_) * kWords);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(seen.data(), seen_, seen.size() * sizeof(int32_t), cudaMemcpyDefault),
              cudaSuccess);
    int num_broken = 0;
    for (int i = 0; i < num_steps_; ++i) {
      bool is_whole = true;
      for (int w = 0; w < kWords; ++w) is_whole &= seen[i * kWords + w] == i * kWords + w;
      num_broken += !is_whole;
    }
    return num_broken;
  }

  absl::Span<std::byte> memory() const { return memory_.host_bytes(); }

 private:
  cudaStream_t stream_;
  int num_steps_;
  MappedBuffer memory_;
  void* seen_ = nullptr;
};

void DelayAtRandom(cudaStream_t stream, std::mt19937& random) {
  const auto delay = static_cast<uintptr_t>(random() % 4 == 0 ? random() % 500 : 0);  // us
  EXPECT_EQ(
      cudaLaunchHostFunc(
          stream,
          [](void* us) {
            std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(us)));
          },
          reinterpret_cast<void*>(delay)),
      cudaSuccess);
}

TEST_F(CudaFenceTest, ARingIsNeverOverwrittenBeforeADelayedStreamHasReadIt) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr int kNumSteps = 300;
  StagingHammer hammer(stream_, kNumSteps);
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < StagingHammer::kNumSlots; ++i) fences.push_back(MakeFence());
  StagingRing ring = *StagingRing::Create(hammer.memory(), std::move(fences));
  int num_refused = 0;
  for (int i = 0; i < kNumSteps; ++i) {
    std::optional<StagingSlot> slot = ring.TryAcquire();
    if (!slot.has_value()) {
      ++num_refused;
      slot = ring.Acquire();
    }
    DelayAtRandom(stream_, random);
    hammer.Step(i, slot->bytes(), slot->offset_bytes());
  }
  EXPECT_EQ(hammer.NumBroken(), 0);
  EXPECT_GT(num_refused, 0) << "no slot was still in use, so the test is inconclusive";
}

// Shows that the hammer detects the defect: these fences never wait.
class NoFence : public Fence {
 public:
  void Arm() override {}
  bool Passed() override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};

TEST_F(CudaFenceTest, WithoutFencesTheSameRingIsOverwritten) {
  constexpr int kNumSteps = 2 * StagingHammer::kNumSlots;
  StagingHammer hammer(stream_, kNumSteps);
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < StagingHammer::kNumSlots; ++i) fences.push_back(std::make_unique<NoFence>());
  StagingRing ring = *StagingRing::Create(hammer.memory(), std::move(fences));
  StreamGate gate(stream_);
  for (int i = 0; i < kNumSteps; ++i) {
    const StagingSlot slot = ring.Acquire();
    hammer.Step(i, slot.bytes(), slot.offset_bytes());
  }
  gate.Open();
  EXPECT_EQ(hammer.NumBroken(), StagingHammer::kNumSlots);  // the slots of the first round
}

}  // namespace
}  // namespace reprise
