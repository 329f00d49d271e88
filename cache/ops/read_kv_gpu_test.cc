#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/ops/kv_scale.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/testing/read_kv_case.h"

namespace reprise {
namespace {

class ReadKvGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }

  static inline const at::Device kGpu = at::Device(at::kCUDA, 0);
};

TEST_F(ReadKvGpuTest, SmallRandomCasesMatchTheReference) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 150; ++i) {
    ASSERT_EQ(RandomReadDifference(random, kGpu), "") << "case " << i;
  }
}

// Writes a latent cache with DeepSeek's sizes from its two parts, and reads it back, beyond 2^31
// elements.
TEST_F(ReadKvGpuTest, ReadsLatentsBeyondTwoToThe31Elements) {
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < size_t{10} << 30) GTEST_SKIP() << "needs 10 GiB of free device memory";
  constexpr int kNumBlocks = (int64_t{1} << 31) / (64 * 576) + 8;
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = kNumBlocks,
                                                      .block_size = 64,
                                                      .num_kv_heads = 1,
                                                      .head_dim_qk = 576,
                                                      .head_dim_v = 512,
                                                      .dtype = DType::kBFloat16,
                                                      .form = KvForm::kLatent}),
                                   kGpu);
  const auto bf16 = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  ASSERT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  const at::Tensor latent = at::randn({4, 512}, bf16), rope = at::randn({4, 64}, bf16);
  const int64_t last = int64_t{kNumBlocks} * 64 - 1;
  const at::Tensor slots = at::tensor({last, last - 1, int64_t{5}, last / 2}, at::kLong).to(kGpu);
  ASSERT_TRUE(WriteLatentKv(cache.layer(0), latent, rope, slots).ok());
  const at::Tensor k = at::empty({4, 1, 576}, bf16);
  ASSERT_TRUE(ReadKv(cache.layer(0), slots, k, at::Tensor()).ok());
  EXPECT_TRUE(k.select(1, 0).narrow(1, 0, 512).equal(latent));
  EXPECT_TRUE(k.select(1, 0).narrow(1, 512, 64).equal(rope));
  EXPECT_EQ(cache.tensors(0)[0][kNumBlocks - 1].isnan().sum().item<int64_t>(), 62 * 576);
}

TEST_F(ReadKvGpuTest, SmallDeviceScalesMatchTheHost) {
  std::mt19937 random(3);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int num_scales : {1, 5}) {
      at::Tensor values = at::randn({3000, 5, 80}).mul_(7).to(dtype);
      values[17][2][3] = std::numeric_limits<float>::infinity();
      values[2999][4][79] = 1000.0f;  // not written
      at::Tensor slots = at::full({3000}, 3, at::kLong);
      slots[2999] = -1;
      const at::Tensor expected = at::zeros({num_scales}), got = expected.to(kGpu).fill_(-1);
      const KvScaleOptions options = {.cache_dtype = DType::kFp8E4M3};
      ASSERT_TRUE(ComputeKvScales(values, slots, expected, options).ok());
      ASSERT_TRUE(ComputeKvScales(values.to(kGpu), slots.to(kGpu), got, options).ok());
      EXPECT_TRUE(got.cpu().equal(expected)) << got << expected;
    }
  }
}

// Scales that are computed inside a graph must be used by the write in the same graph.
TEST_F(ReadKvGpuTest, CapturedWriteUsesScalesComputedInTheSameGraph) {
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 4,
                                                      .block_size = 16,
                                                      .num_kv_heads = 2,
                                                      .head_dim_qk = 64,
                                                      .head_dim_v = 64,
                                                      .dtype = DType::kFp8E4M3}),
                                   kGpu);
  ASSERT_TRUE(cache.Fill(0).ok());
  at::Tensor scales = at::zeros({2}, at::TensorOptions(kGpu));
  const Scale scale = *ScaleFromTensor("scales", scales, 2);
  cache.SetScales(0, scale, scale);
  at::Tensor values = at::randn({8, 2, 64}, at::TensorOptions(kGpu));
  const at::Tensor slots = at::tensor({1, 2, 3, 4, 5, 6, 7, 63}, at::kLong).to(kGpu);
  const at::Tensor k = at::empty({8, 2, 64}, at::TensorOptions(kGpu)), v = at::empty_like(k);
  const auto work = [&] {
    EXPECT_TRUE(ComputeKvScales(values, slots, scales, {}).ok());
    EXPECT_TRUE(WriteKv(cache.layer(0), values, values, slots).ok());
    EXPECT_TRUE(ReadKv(cache.layer(0), slots, k, v).ok());
  };
  work();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, kGpu.index()));
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    work();
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  }
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (float magnitude : {0.01f, 100.0f, 30000.0f}) {
    values.normal_().mul_(magnitude);
    ASSERT_EQ(cudaGraphLaunch(exec, c10::cuda::getCurrentCUDAStream(kGpu.index())), cudaSuccess);
    EXPECT_EQ(scales.max().item<float>(), values.abs().max().item<float>() / 448);
    // e4m3 has 3 mantissa bits: half a step is at most 2^-4 of the value. Tiny values have fixed
    // steps of 2^-9 times the scale.
    const at::Tensor allowed = values.abs().div(16).add(scales.max().mul(1.0f / 512));
    EXPECT_TRUE(k.sub(values).abs().le(allowed).all().item<bool>());
    EXPECT_TRUE(v.equal(k));
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace reprise
