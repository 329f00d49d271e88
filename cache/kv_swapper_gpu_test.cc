// Swaps against steps that run late, on streams that are slowed down at random.
//
// The model is a list of numbers: what each device block and each host block should hold. The
// device does everything some time later, and counts the elements it found wrong. With the
// orderings that KvSwapper and its caller owe each other, nothing is ever wrong; with any one of
// them left out, the same operations garble, which is tested too: so the test can fail.

#include <ATen/core/Tensor.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cuda_fence.h"
#include "base/fence.h"
#include "cache/block_copy.h"
#include "cache/copy_blocks.h"
#include "cache/kv_cache.h"
#include "cache/kv_layout.h"
#include "cache/kv_swapper.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kDeviceBlocks = 12;
constexpr int kHostBlocks = 16;

// What a run leaves out. Nothing is how it is used.
enum class Missing {
  kNothing,
  kSwapAfterWriters,  // no event from the step's stream to the swaps'
  kWriteAfterSwap,    // no event back before a block that went out is written again
  kReadAfterSwap,     // no event back before a block that came in is read
};

class SwapRun {
 public:
  SwapRun(unsigned seed, Missing missing)
      : random_(seed),
        missing_(missing),
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

  // Random operations until `num_swaps` have been done; the number of wrong elements found.
  int64_t Run(int num_swaps) {
    // Kernels are loaded before streams are made to wait, for loading waits for the device.
    EXPECT_TRUE(cache_.Fill(0).ok());
    // The stream of steps does not wait for the default one, which fills.
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
      // The host runs ahead, but not without end.
      if (swaps % 200 == 199) steps_.synchronize();
    }
    cudaDeviceSynchronize();
    return num_wrong_.item<int64_t>();
  }

 private:
  int AnyDeviceBlock() { return static_cast<int>(random_() % kDeviceBlocks); }

  // Some 20 us of the stream's time, now and then.
  void Delay(CUstream_st* stream) {
    if (random_() % 3 != 0) return;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, 0));
    at::cuda::sleep(static_cast<int64_t>(random_() % 60000));
  }

  // A step writes a block, late.
  void Write(int block) {
    AwaitWriteable(block);
    Delay(steps_.stream());
    const int value = next_value_++;
    for (int layer : {0, 1}) {
      for (const at::Tensor& tensor : cache_.tensors(layer)) at::Tensor(tensor[block]).fill_(value);
    }
    on_device_[block] = value;
  }

  // A step reads a block, late.
  void Check(int block) {
    for (int layer : {0, 1}) {
      for (const at::Tensor& tensor : cache_.tensors(layer)) {
        num_wrong_.add_(tensor[block].ne(on_device_[block]).sum());
      }
    }
  }

  void AwaitWriteable(int block) {
    if (went_out_[block].value() != 0 && missing_ != Missing::kWriteAfterSwap) {
      EXPECT_TRUE(swapper_->Await(went_out_[block]).ok());
    }
    went_out_[block] = SwapTicket();
  }

  SwapTicket Swap(bool is_out, const std::vector<BlockCopy>& copies) {
    Delay(swapper_->stream());
    if (missing_ == Missing::kSwapAfterWriters) {
      // What the swapper does, without its event: an empty swap gives the ticket.
      const BlockStore &device = swapper_->device_blocks(), &host = swapper_->host_blocks();
      const c10::cuda::CUDAStreamGuard guard(
          c10::cuda::getStreamFromExternal(swapper_->stream(), 0));
      EXPECT_TRUE(
          CopyBlocks(is_out ? device : host, is_out ? host : device, copies, CopyPath::kKernel)
              .ok());
      return *swapper_->SwapOut({});
    }
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
      on_device_[copy.src] = -1;  // freed: its next user writes it
      went_out_[copy.src] = ticket;
    }
    return 1;
  }

  int SwapIn() {
    const int host = static_cast<int>(random_() % kHostBlocks), block = AnyDeviceBlock();
    if (on_host_[host] < 0) return 0;
    // Swaps run in their order, so one that went out from here before needs no waiting.
    went_out_[block] = SwapTicket();
    const SwapTicket ticket = Swap(false, {{host, block}});
    on_device_[block] = on_host_[host];
    if (missing_ != Missing::kReadAfterSwap) {
      EXPECT_TRUE(swapper_->Await(ticket).ok());
    }
    if (random_() % 2 == 0) Check(block);
    return 1;
  }

  std::mt19937 random_;
  const Missing missing_;
  KvCache cache_;
  const std::unique_ptr<KvSwapper> swapper_;
  const c10::cuda::CUDAStream steps_;
  at::Tensor num_wrong_;              // [1] int64, on the device
  std::vector<int> on_device_;        // the value of each block; -1: none
  std::vector<int> on_host_;          // the same of host blocks
  std::vector<SwapTicket> went_out_;  // the swap that still reads the block
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

TEST_F(KvSwapperGpuTest, TenThousandSwapsBesideLateStepsGarbleNothing) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  EXPECT_EQ(SwapRun(seed, Missing::kNothing).Run(10000), 0);
}

// The same operations garble as soon as one event is left out: the test above is able to fail.
TEST_F(KvSwapperGpuTest, WithoutAnyOneOfTheEventsTheSameSwapsGarble) {
  for (Missing missing :
       {Missing::kSwapAfterWriters, Missing::kWriteAfterSwap, Missing::kReadAfterSwap}) {
    SCOPED_TRACE(testing::Message() << "without event " << static_cast<int>(missing));
    EXPECT_GT(SwapRun(7, missing).Run(1000), 0);
  }
}

TEST_F(KvSwapperGpuTest, SmallTicketsPassInTheirOrderAndFencesFollowTheStream) {
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
  fence->Wait();
  EXPECT_TRUE(swapper->Await(first).ok());
  const float* const host =
      reinterpret_cast<const float*>(swapper->host_blocks().extents()[0].data +
                                     2 * swapper->host_blocks().extents()[0].block_stride);
  EXPECT_EQ(host[0], 3);
  // Many more swaps than are ever in flight: events are used again.
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(swapper->SwapOut(copies).ok());
  ASSERT_TRUE(swapper->Wait(SwapTicket(302)).ok());
  EXPECT_TRUE(swapper->Passed(SwapTicket(302)));
}

}  // namespace
}  // namespace reprise
