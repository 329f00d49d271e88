#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/ops/kv_canary.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

class KvCanaryGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }

  static inline const at::Device kGpu = at::Device(at::kCUDA, 0);
};

at::Tensor Ints(const std::vector<int>& values) { return at::tensor(values, at::kInt); }

TEST_F(KvCanaryGpuTest, SmallChecksMatchTheHost) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    const int block_size = 1 + static_cast<int>(random() % 17);
    const KvCanaryOptions options = {.num_blocks = 50, .block_size = block_size};
    KvCanary host = *KvCanary::Create(options);
    KvCanary gpu = *KvCanary::Create({.num_blocks = 50, .block_size = block_size, .device = kGpu});
    const int num_slots = 50 * block_size, num_rows = static_cast<int>(random() % 9);
    at::Tensor slots = at::randint(-1, num_slots + 2, {400}, at::kLong);
    const at::Tensor sequences = at::randint(0, 3, {400}, at::kInt),
                     positions = at::randint(0, 20, {400}, at::kInt);
    // Slots must be distinct, because any of several marks for one slot could win.
    std::vector<bool> is_taken(num_slots + 2);
    for (int i = 0; i < 400; ++i) {
      const int64_t slot = slots[i].item<int64_t>();
      if (slot >= 0 && is_taken[slot]) slots[i] = -1;
      if (slot >= 0) is_taken[slot] = true;
    }
    ASSERT_TRUE(host.Mark(slots, sequences, positions).ok());
    ASSERT_TRUE(gpu.Mark(slots.to(kGpu), sequences.to(kGpu), positions.to(kGpu)).ok());
    EXPECT_TRUE(gpu.marks().cpu().equal(host.marks()));

    KvCanaryRows rows = {.block_table = at::randint(-1, 52, {5, 6}, at::kInt),
                         .seq_lens = at::randint(0, 7 * block_size, {num_rows}, at::kInt),
                         .sequences = at::randint(0, 3, {num_rows}, at::kInt),
                         .table_row = at::randint(-1, 6, {num_rows}, at::kInt),
                         .key_start = at::randint(0, 5, {num_rows}, at::kInt),
                         .shared_lens = at::randint(0, 9, {num_rows}, at::kInt),
                         .first_keys = at::randint(0, 9, {num_rows}, at::kInt)};
    ASSERT_TRUE(host.Check(rows).ok());
    for (at::Tensor* tensor : {&rows.block_table, &rows.seq_lens, &rows.sequences, &rows.table_row,
                               &rows.key_start, &rows.shared_lens, &rows.first_keys}) {
      *tensor = tensor->to(kGpu);
    }
    ASSERT_TRUE(gpu.Check(rows).ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(gpu.report().num_wrong, host.report().num_wrong);
    if (host.report().num_wrong <= kMaxCanaryFaults) {
      EXPECT_EQ(gpu.report().first, host.report().first);
    }
  }
}

TEST_F(KvCanaryGpuTest, SmallCapturedCheckFindsLaterFaults) {
  KvCanary canary = *KvCanary::Create({.num_blocks = 4, .block_size = 2, .device = kGpu});
  const at::Tensor slots = at::tensor({2, 3}, at::kLong).to(kGpu);
  at::Tensor sequences = Ints({7, 7}).to(kGpu);
  const at::Tensor positions = Ints({0, 1}).to(kGpu);
  const KvCanaryRows rows = {.block_table = Ints({1}).view({1, 1}).to(kGpu),
                             .seq_lens = Ints({2}).to(kGpu),
                             .sequences = Ints({7}).to(kGpu)};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, kGpu.index()));
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(canary.Mark(slots, sequences, positions).ok());
    EXPECT_TRUE(canary.Check(rows).ok());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  }
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_EQ(canary.report().num_wrong, 0);
  sequences[1] = 9;
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  stream.synchronize();
  EXPECT_THAT(canary.report().first,
              ElementsAre(KvCanaryFault{
                  .row = 0, .block = 1, .offset = 1, .expected = {7, 1}, .found = {9, 1}}));
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace reprise
