// Tests swaps with steps that run late, on randomly delayed streams.
//
// The model is a list of numbers: the expected content of each device block and host block. The
// device counts the elements that are wrong. With the orderings that KvSwapper and its caller
// guarantee, no element is ever wrong. The orderings between steps and swaps are also tested
// separately, with a gate that blocks one stream. Without the ordering, the result is then always
// wrong.

#include <ATen/core/Tensor.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/cuda_fence.h"
#include "reprise/base/fence.h"
#include "reprise/base/testing/stream_gate.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/ops/copy_blocks.h"
#include "reprise/cache/ops/kv_swapper.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

constexpr int kDeviceBlocks = 12;
constexpr int kHostBlocks = 16;

class SwapRun {
 public:
  explicit SwapRun(unsigned seed)
      : random_(seed),
        cache_(*KvCache::Create(*KvLayout::Create({.num_layers = 2,
                                                   .num_blocks = kDeviceBlocks,
                                                   .block_size = 16,
                                                   .num_kv_heads = 2,
                                                   .head_dim_qk = 64,
                                                   .head_dim_v = 64}),
                                at::Device(at::kCUDA, 0))),
        swapper_(*KvSwapper::Create(cache_,
                                    {.num_host_blocks = kHostBlocks, .path = CopyPath::kKernel})),
        steps_(c10::cuda::getStreamFromPool(false, 0)),
        num_wrong_(at::zeros({1}, at::TensorOptions(at::kCUDA).dtype(at::kLong))),
        on_device_(kDeviceBlocks, -1),
        on_host_(kHostBlocks, -1),
        went_out_(kDeviceBlocks) {}

  // Makes random operations until `num_swaps` swaps have been made. Returns the number of wrong
  // elements.
  int64_t Run(int num_swaps) {
    // Loads kernels before streams are delayed, because loading waits for the device.
    EXPECT_TRUE(cache_.Fill(0).ok());
    // The step stream does not wait for the default stream, which fills the memory.
    cudaDeviceSynchronize();
    const c10::cuda::CUDAStreamGuard guard(steps_);
    Write(0);
    Check(0);
    Delay(swapper_->stream());
    cudaDeviceSynchronize();
    for (int swaps = 0; swaps < num_swaps;) {
      switch (random_() % 4) {
        case 0:
          Write(AnyDeviceBlock());
          break;
        case 1: {
          const int block = AnyDeviceBlock();
          if (on_device_[block] >= 0) Check(block);
          break;
        }
        case 2:
          swaps += SwapOut();
          break;
        case 3:
          swaps += SwapIn();
          break;
      }
      // The host runs ahead by a limited number of operations.
      if (swaps % 200 == 199) steps_.synchronize();
    }
    cudaDeviceSynchronize();
    return num_wrong_.item<int64_t>();
  }

 private:
  int AnyDeviceBlock() { return static_cast<int>(random_() % kDeviceBlocks); }

  // Sometimes adds up to 60,000 cycles of work to the stream.
  void Delay(CUstream_st* stream) {
    if (random_() % 3 != 0) return;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, 0));
    at::cuda::sleep(static_cast<int64_t>(random_() % 60000));
  }

  // Enqueues a step, sometimes delayed, that writes a block.
  void Write(int block) {
    AwaitWriteable(block);
    Delay(steps_.stream());
    const int value = next_value_++;
    for (int layer : {0, 1}) {
      for (const at::Tensor& tensor : cache_.tensors(layer)) at::Tensor(tensor[block]).fill_(value);
    }
    on_device_[block] = value;
  }

  // Enqueues a step that reads a block.
  void Check(int block) {
    for (int layer : {0, 1}) {
      for (const at::Tensor& tensor : cache_.tensors(layer)) {
        num_wrong_.add_(tensor[block].ne(on_device_[block]).sum());
      }
    }
  }

  void AwaitWriteable(int block) {
    if (went_out_[block].value() != 0) {
      EXPECT_TRUE(swapper_->Await(went_out_[block]).ok());
    }
    went_out_[block] = SwapTicket();
  }

  SwapTicket Swap(bool is_out, const std::vector<BlockCopy>& copies) {
    Delay(swapper_->stream());
    return is_out ? *swapper_->SwapOut(copies) : *swapper_->SwapIn(copies);
  }

  int SwapOut() {
    std::vector<BlockCopy> copies;
    for (int i = 0; i < 2; ++i) {
      const int block = AnyDeviceBlock(), host = static_cast<int>(random_() % kHostBlocks);
      if (on_device_[block] < 0 ||
          (i == 1 && !copies.empty() && (copies[0].src == block || copies[0].dst == host))) {
        continue;
      }
      copies.push_back({block, host});
    }
    if (copies.empty()) return 0;
    const SwapTicket ticket = Swap(true, copies);
    for (const BlockCopy& copy : copies) {
      on_host_[copy.dst] = on_device_[copy.src];
      on_device_[copy.src] = -1;  // freed: the next user writes it
      went_out_[copy.src] = ticket;
    }
    return 1;
  }

  int SwapIn() {
    const int host = static_cast<int>(random_() % kHostBlocks), block = AnyDeviceBlock();
    if (on_host_[host] < 0) return 0;
    // Swaps run in order, so an earlier swap-out of the block needs no wait.
    went_out_[block] = SwapTicket();
    const SwapTicket ticket = Swap(false, {{host, block}});
    on_device_[block] = on_host_[host];
    EXPECT_TRUE(swapper_->Await(ticket).ok());
    if (random_() % 2 == 0) Check(block);
    return 1;
  }

  std::mt19937 random_;
  KvCache cache_;
  const std::unique_ptr<KvSwapper> swapper_;
  const c10::cuda::CUDAStream steps_;
  at::Tensor num_wrong_;              // [1] int64, on the device
  std::vector<int> on_device_;        // the value of each block; -1: none
  std::vector<int> on_host_;          // as on_device_, for host blocks
  std::vector<SwapTicket> went_out_;  // by block: the swap that may still read it
  int next_value_ = 1;
};

class KvSwapperGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }
};

TEST_F(KvSwapperGpuTest, TenThousandSwapsDuringLateStepsKeepAllValues) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  EXPECT_EQ(SwapRun(seed).Run(10000), 0);
}

// A step writes or reads one block on one stream, and a swap moves it on another. A gate blocks the
// stream that must run first. With the ordering, the other stream waits. Without it, the other
// stream finishes before the gate opens, and the result is always wrong.
class KvSwapperOrderGpuTest : public KvSwapperGpuTest {
 protected:
  void SetUp() override {
    KvSwapperGpuTest::SetUp();
    if (IsSkipped()) return;
    cache_.emplace(*KvCache::Create(
        *KvLayout::Create(
            {.num_blocks = 4, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64}),
        at::Device(at::kCUDA, 0)));
    swapper_ = *KvSwapper::Create(*cache_, {.num_host_blocks = 4, .path = CopyPath::kKernel});
    steps_.emplace(c10::cuda::getStreamFromPool(false, 0));
    other_.emplace(c10::cuda::getStreamFromPool(false, 0));
    seen_ = at::zeros_like(Block(1));
    ASSERT_TRUE(cache_->Fill(0).ok());
    // Kernels cannot be loaded while the gate is closed.
    const c10::cuda::CUDAStreamGuard guard(*steps_);
    Write(1, 1);
    seen_.copy_(Block(1));
    ASSERT_TRUE(swapper_->SwapOut({{{1, 1}}}).ok());
    ASSERT_TRUE(swapper_->SwapIn({{{1, 1}}}).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  at::Tensor Block(int block) const { return cache_->tensors(0)[0].select(0, block); }
  void Write(int block, float value) {
    for (const at::Tensor& tensor : cache_->tensors(0)) tensor.select(0, block).fill_(value);
  }

  // Sets block 1 and host block 1 to 10 and block 2 to 0, and waits until the device is idle.
  void Begin() {
    Write(1, 10);
    Write(2, 0);
    ASSERT_TRUE(swapper_->SwapOut({{{1, 1}}}).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  float HostValue(int block) const {
    const auto& extent = swapper_->host_blocks().extents()[0];
    return *reinterpret_cast<const float*>(extent.data + block * extent.block_stride);
  }

  // Long enough for work that is not blocked.
  static void WaitAWhile() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

  std::optional<KvCache> cache_;
  std::unique_ptr<KvSwapper> swapper_;
  std::optional<c10::cuda::CUDAStream> steps_;
  std::optional<c10::cuda::CUDAStream> other_;  // not ordered with the steps
  at::Tensor seen_;                             // the values that a step has read
};

TEST_F(KvSwapperOrderGpuTest, SwapOutWaitsForEarlierWritesOnTheStream) {
  for (const bool is_ordered : {true, false}) {
    SCOPED_TRACE(is_ordered);
    const c10::cuda::CUDAStreamGuard guard(*steps_);
    Begin();
    StreamGate gate(steps_->stream());
    Write(1, 20);
    if (is_ordered) {
      const SwapTicket ticket = *swapper_->SwapOut({{{1, 1}}});
      WaitAWhile();
      EXPECT_FALSE(swapper_->Passed(ticket));
    } else {
      const c10::cuda::CUDAStreamGuard other_guard(*other_);
      const SwapTicket ticket = *swapper_->SwapOut({{{1, 1}}});
      ASSERT_TRUE(swapper_->Wait(ticket).ok());
    }
    gate.Open();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(HostValue(1), is_ordered ? 20 : 10);
  }
}

TEST_F(KvSwapperOrderGpuTest, WriteAfterAwaitWaitsForTheSwapOut) {
  for (const bool is_ordered : {true, false}) {
    SCOPED_TRACE(is_ordered);
    const c10::cuda::CUDAStreamGuard guard(*steps_);
    Begin();
    StreamGate gate(swapper_->stream());
    const SwapTicket ticket = *swapper_->SwapOut({{{1, 2}}});
    if (is_ordered) {
      ASSERT_TRUE(swapper_->Await(ticket).ok());
    }
    Write(1, 20);
    if (is_ordered) {
      WaitAWhile();
      EXPECT_FALSE(steps_->query());
    } else {
      steps_->synchronize();
    }
    gate.Open();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(HostValue(2), is_ordered ? 10 : 20);
  }
}

TEST_F(KvSwapperOrderGpuTest, ReadAfterAwaitWaitsForTheSwapIn) {
  for (const bool is_ordered : {true, false}) {
    SCOPED_TRACE(is_ordered);
    const c10::cuda::CUDAStreamGuard guard(*steps_);
    Begin();
    StreamGate gate(swapper_->stream());
    const SwapTicket ticket = *swapper_->SwapIn({{{1, 2}}});
    if (is_ordered) {
      ASSERT_TRUE(swapper_->Await(ticket).ok());
    }
    seen_.copy_(Block(2));
    if (is_ordered) {
      WaitAWhile();
      EXPECT_FALSE(steps_->query());
    } else {
      steps_->synchronize();
    }
    gate.Open();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(seen_.flatten()[0].item<float>(), is_ordered ? 10 : 0);
  }
}

TEST_F(KvSwapperGpuTest, SmallTicketsCompleteInOrderAndFencesFollowTheStream) {
  KvCache cache = *KvCache::Create(
      *KvLayout::Create({.num_blocks = 4, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64}),
      at::Device(at::kCUDA, 0));
  ASSERT_TRUE(cache.Fill(3).ok());
  std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 4});
  ASSERT_NE(swapper->stream(), nullptr);
  std::unique_ptr<Fence> fence = *MakeCudaFence({.stream = swapper->stream()});
  const BlockCopy copies[] = {{1, 2}};
  const SwapTicket first = *swapper->SwapOut(copies);
  const SwapTicket second = *swapper->SwapIn({{{2, 3}}});
  fence->Arm();
  ASSERT_TRUE(swapper->Wait(second).ok());
  EXPECT_TRUE(swapper->Passed(first));
  EXPECT_TRUE(swapper->Passed(second));
  ASSERT_EQ(fence->Wait(), absl::OkStatus());
  EXPECT_TRUE(swapper->Await(first).ok());
  const float* const host =
      reinterpret_cast<const float*>(swapper->host_blocks().extents()[0].data +
                                     2 * swapper->host_blocks().extents()[0].block_stride);
  EXPECT_EQ(host[0], 3);
  // Many more swaps, so that events are reused.
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(swapper->SwapOut(copies).ok());
  ASSERT_TRUE(swapper->Wait(SwapTicket(302)).ok());
  EXPECT_TRUE(swapper->Passed(SwapTicket(302)));
}

}  // namespace
}  // namespace reprise
