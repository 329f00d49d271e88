#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/testing/write_kv_case.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class WriteKvGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }

  static at::Tensor OnGpu(const at::Tensor& tensor) { return tensor.to(kGpu); }

  static at::Tensor Slots(const std::vector<int64_t>& slots) {
    return OnGpu(at::tensor(slots, at::kLong));
  }

  static inline const at::Device kGpu = at::Device(at::kCUDA, 0);
};

constexpr KvForm kForms[] = {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked,
                             KvForm::kLatent};
constexpr int kNumForms = static_cast<int>(std::size(kForms));

// The shape of a Llama-3.1-8B layer.
KvLayoutOptions LlamaLayout(KvForm form, KvOrder order) {
  return {.num_blocks = 600,
          .block_size = 16,
          .num_kv_heads = 8,
          .head_dim_qk = 128,
          .head_dim_v = 128,
          .dtype = DType::kBFloat16,
          .order = order,
          .form = form};
}

TEST_F(WriteKvGpuTest, RandomCasesMatchTheReference) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 1200; ++i) {
    WriteKvCase c = WriteKvCase::Random(random, {.device = kGpu});
    SCOPED_TRACE(testing::Message() << "case " << i);
    absl::Status status = c.Write();
    ASSERT_TRUE(status.ok()) << status << c.description();
    ASSERT_EQ(c.Difference(), "");
  }
}

// For sanitizers: random layouts and conversions with a few tokens.
TEST_F(WriteKvGpuTest, SmallWritesMatchTheReference) {
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    WriteKvCase c = WriteKvCase::Random(random, {.device = kGpu, .num_tokens = 1 + i % 40});
    SCOPED_TRACE(testing::Message() << "case " << i);
    ASSERT_TRUE(c.Write().ok());
    ASSERT_EQ(c.Difference(), "");
  }
}

TEST_F(WriteKvGpuTest, WritesAnyNumberOfTokens) {
  std::mt19937 random(11);
  for (const auto& [form, order] :
       {std::pair(KvForm::kPair, KvOrder::kNHD), std::pair(KvForm::kPair, KvOrder::kHND),
        std::pair(KvForm::kKPacked, KvOrder::kNHD)}) {
    for (int num_tokens : {0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 1000, 4097, 8192}) {
      WriteKvCase c = WriteKvCase::Random(random, {.device = kGpu,
                                                   .layout = LlamaLayout(form, order),
                                                   .source_dtype = DType::kBFloat16,
                                                   .num_tokens = num_tokens});
      ASSERT_TRUE(c.Write().ok());
      ASSERT_EQ(c.Difference(), "");
    }
  }
}

// Slots, keys, values and scales change between replays.
TEST_F(WriteKvGpuTest, ReplayUsesCurrentInputs) {
  std::mt19937 random(13);
  for (int i = 0; i < 8 * kNumForms; ++i) {
    const KvForm form = kForms[i % kNumForms];
    const KvOrder order = i / kNumForms % 2 == 0 ? KvOrder::kHND : KvOrder::kNHD;
    KvLayoutOptions layout = LlamaLayout(form, order);
    if (form == KvForm::kLatent) layout.num_kv_heads = 1;
    if (i / kNumForms % 4 >= 2) layout.dtype = DType::kFp8E4M3;
    WriteKvCase c =
        WriteKvCase::Random(random, {.device = kGpu, .layout = layout, .num_tokens = 100});
    SCOPED_TRACE(c.description());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    {
      const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, kGpu.index());
      const c10::cuda::CUDAStreamGuard guard(stream);
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      absl::Status status = c.Write();
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      ASSERT_TRUE(status.ok()) << status;
    }
    size_t num_nodes = 0;
    ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
    EXPECT_EQ(num_nodes, 1);  // one launch
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(kGpu.index());
    for (int replay = 0; replay < 5; ++replay) {
      ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      ASSERT_EQ(c.Difference(), "") << "replay " << replay;
      c.ChangeContents(random);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

TEST_F(WriteKvGpuTest, SmallReplayReadsSlotsInTwoDimensions) {
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 3,
                                                      .block_size = 4,
                                                      .num_kv_heads = 2,
                                                      .head_dim_qk = 16,
                                                      .head_dim_v = 16,
                                                      .dtype = DType::kFloat16}),
                                   kGpu);
  const at::Tensor k = OnGpu(at::randn({6, 2, 16})).to(at::kHalf);
  const at::Tensor v = OnGpu(at::randn({6, 2, 16})).to(at::kHalf);
  at::Tensor slots = OnGpu(at::full({2, 3}, -1, at::kLong));
  CapturedWork graph([&](cudaStream_t stream) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, kGpu.index()));
    ASSERT_TRUE(WriteKv(cache.layer(0), k, v, slots).ok());
  });
  const std::vector<std::vector<int64_t>> of_replays = {
      {0, 11, 5, -1, 7, 2}, {-1, -1, -1, -1, -1, -1}, {3, 2, 1, 0, 10, 9}};
  for (const std::vector<int64_t>& of_replay : of_replays) {
    ASSERT_TRUE(cache.Fill(kNan).ok());
    slots.copy_(at::tensor(of_replay, at::kLong).view({2, 3}));
    graph.Replay();
    const at::Tensor got_k = cache.tensors(0)[0].view({12, 2, 16}).cpu();
    const at::Tensor got_v = cache.tensors(0)[1].view({12, 2, 16}).cpu();
    at::Tensor want_k = at::full({12, 2, 16}, kNan).to(at::kHalf);
    at::Tensor want_v = want_k.clone();
    for (int token = 0; token < 6; ++token) {
      if (of_replay[token] < 0) continue;
      want_k[of_replay[token]].copy_(k[token]);
      want_v[of_replay[token]].copy_(v[token]);
    }
    EXPECT_TRUE(got_k.nan_to_num(99).equal(want_k.nan_to_num(99)));
    EXPECT_TRUE(got_v.nan_to_num(99).equal(want_v.nan_to_num(99)));
  }
}

TEST_F(WriteKvGpuTest, ReplayUsesCurrentScales) {
  KvLayoutOptions options = {.num_blocks = 2,
                             .block_size = 1,
                             .num_kv_heads = 2,
                             .head_dim_qk = 16,
                             .head_dim_v = 16,
                             .dtype = DType::kFp8E4M3};
  KvCache cache = *KvCache::Create(*KvLayout::Create(options), kGpu);
  at::Tensor scales = OnGpu(at::tensor({1.0f, 2.0f}));
  cache.SetScales(0, {.data = scales.const_data_ptr<float>(), .head_stride = 1}, {});
  const at::Tensor values = OnGpu(at::full({1, 2, 16}, 8.0f)), slots = Slots({1});
  const auto k_of_head = [&](int head) {
    return cache.tensors(0)[0][1][0][head].to(at::kFloat).cpu()[15].item<float>();
  };
  CapturedWork graph([&](cudaStream_t stream) {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream, kGpu.index()));
    ASSERT_TRUE(WriteKv(cache.layer(0), values, values, slots).ok());
  });
  graph.Replay();
  EXPECT_EQ(k_of_head(0), 8);
  EXPECT_EQ(k_of_head(1), 4);
  scales.fill_(0.5f);
  graph.Replay();
  EXPECT_EQ(k_of_head(0), 16);
  EXPECT_EQ(k_of_head(1), 16);
}

// MLA in two tensors: a replay uses new scales of both parts, which are read back as one key.
TEST_F(WriteKvGpuTest, ReplayUsesCurrentScalesOfLatentAndRope) {
  for (const DType rope_dtype : {DType::kFp8E4M3, DType::kBFloat16}) {
    SCOPED_TRACE(testing::Message() << rope_dtype);
    const at::Tensor latents = at::zeros({2, 4, 512}, at::TensorOptions(kGpu).dtype(at::kByte));
    const at::Tensor ropes = at::zeros({2, 4, 64}, at::TensorOptions(kGpu).dtype(at::kFloat))
                                 .to(ToScalarType(rope_dtype));
    const at::Tensor scales = OnGpu(at::tensor({2.0f, 0.5f}));
    const KvView latent_view = {
        .data = latents.data_ptr(), .block_stride = 2048, .token_stride = 512, .dim_chunk = 512};
    const KvLayer kv = {.k = latent_view,
                        .v = latent_view,
                        .dtype = DType::kFp8E4M3,
                        .num_blocks = 2,
                        .block_size = 4,
                        .num_kv_heads = 1,
                        .head_dim_qk = 576,
                        .head_dim_v = 512,
                        .k_scale = {.data = scales.const_data_ptr<float>()},
                        .rope_dim = 64,
                        .rope_dtype = rope_dtype,
                        .rope = {.data = ropes.data_ptr(),
                                 .block_stride = 256,
                                 .token_stride = 64,
                                 .dim_chunk = 64},
                        .rope_scale = {.data = scales.const_data_ptr<float>() + 1}};
    const at::TensorOptions as_model = at::TensorOptions(kGpu).dtype(at::kBFloat16);
    const at::Tensor latent = at::full({2, 512}, 8.0f, as_model);
    const at::Tensor rope = at::full({2, 64}, 3.0f, as_model);
    const at::Tensor slots = Slots({6, -1});
    const at::Tensor k = at::full({1, 1, 576}, 7.0f, at::TensorOptions(kGpu).dtype(at::kFloat));
    const at::Tensor wanted = Slots({6});
    CapturedWork graph([&](cudaStream_t stream) {
      const c10::cuda::CUDAStreamGuard guard(
          c10::cuda::getStreamFromExternal(stream, kGpu.index()));
      ASSERT_TRUE(WriteLatentKv(kv, latent, rope, slots).ok());
      ASSERT_TRUE(ReadKv(kv, wanted, k, at::Tensor()).ok());
    });
    for (const auto& [latent_scale, rope_scale] :
         {std::pair(2.0f, 0.5f), std::pair(0.25f, 1.0f), std::pair(4.0f, 0.125f)}) {
      scales.copy_(at::tensor({latent_scale, rope_scale}));
      graph.Replay();
      const at::Tensor stored =
          latents.view(at::kFloat8_e4m3fn).to(at::kFloat).view({8, 512}).cpu();
      const at::Tensor stored_ropes = ropes.to(at::kFloat).view({8, 64}).cpu();
      EXPECT_TRUE(stored[6].equal(at::full({512}, 8.0f / latent_scale))) << stored[6];
      EXPECT_TRUE(stored_ropes[6].equal(at::full({64}, 3.0f / rope_scale))) << stored_ropes[6];
      // No other slot was written.
      EXPECT_EQ(stored.sum().item<float>(), 512 * 8.0f / latent_scale);
      EXPECT_EQ(stored_ropes.sum().item<float>(), 64 * 3.0f / rope_scale);
      const at::Tensor read = k.cpu()[0][0];
      EXPECT_TRUE(read.slice(0, 0, 512).equal(at::full({512}, 8.0f))) << read;
      EXPECT_TRUE(read.slice(0, 512).equal(at::full({64}, 3.0f))) << read;
    }
  }
}

TEST_F(WriteKvGpuTest, NanStaysNanAndInfinitySaturatesFp8) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    SCOPED_TRACE(testing::Message() << dtype);
    KvLayoutOptions options = {.num_blocks = 1,
                               .block_size = 1,
                               .num_kv_heads = 1,
                               .head_dim_qk = 16,
                               .head_dim_v = 3,
                               .dtype = dtype};
    KvCache cache = *KvCache::Create(*KvLayout::Create(options), kGpu);
    ASSERT_TRUE(cache.Fill(0).ok());
    at::Tensor k = at::zeros({1, 1, 16}), v = at::zeros({1, 1, 3});
    k[0][0][5] = v[0][0][1] = kNan;
    k[0][0][6] = v[0][0][2] = -std::numeric_limits<float>::infinity();
    ASSERT_TRUE(WriteKv(cache.layer(0), OnGpu(k), OnGpu(v), Slots({0})).ok());
    const float lowest = dtype == DType::kFp8E4M3   ? -448.0f
                         : dtype == DType::kFp8E5M2 ? -57344.0f
                                                    : -std::numeric_limits<float>::infinity();
    const at::Tensor got_k = cache.tensors(0)[0].to(at::kFloat).cpu().reshape(-1);
    const at::Tensor got_v = cache.tensors(0)[1].to(at::kFloat).cpu().reshape(-1);
    EXPECT_EQ(got_k[4].item<float>(), 0);
    EXPECT_TRUE(std::isnan(got_k[5].item<float>()));
    EXPECT_EQ(got_k[6].item<float>(), lowest);
    EXPECT_TRUE(std::isnan(got_v[1].item<float>()));
    EXPECT_EQ(got_v[2].item<float>(), lowest);
  }
}

TEST_F(WriteKvGpuTest, Fp8KeysAreCopiedRegardlessOfTheScales) {
  for (DType dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    for (KvForm form : {KvForm::kPair, KvForm::kKPacked}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << form);
      KvLayoutOptions options = LlamaLayout(form, KvOrder::kNHD);
      options.dtype = dtype;
      options.num_blocks = 3;
      KvCache device = *KvCache::Create(*KvLayout::Create(options), kGpu);
      KvCache host = *KvCache::Create(*KvLayout::Create(options), at::kCPU);
      device.SetScales(0, {.value = 2.0f}, {.value = 0.5f});
      host.SetScales(0, {.value = 2.0f}, {.value = 0.5f});
      ASSERT_TRUE(device.Fill(0).ok() && host.Fill(0).ok());
      const at::ScalarType type = ToScalarType(dtype);
      const at::Tensor k = at::randn({20, 8, 128}).to(type), v = at::randn({20, 8, 128}).to(type);
      std::vector<int64_t> slots;
      for (int64_t token = 0; token < 20; ++token)
        slots.push_back(token % 7 == 3 ? -1 : 40 - token);
      ASSERT_TRUE(WriteKv(device.layer(0), OnGpu(k), OnGpu(v), Slots(slots)).ok());
      ASSERT_TRUE(WriteKv(host.layer(0), k, v, at::tensor(slots, at::kLong)).ok());
      for (int i : {0, 1}) {
        const at::Tensor expected = host.tensors(0)[i].view(at::kByte);
        EXPECT_TRUE(device.tensors(0)[i].view(at::kByte).cpu().equal(expected));
        EXPECT_GT(expected.count_nonzero().item<int64_t>(), 10000);
      }
    }
  }
}

// A cache of more than 2^31 elements and 2^32 bytes. Writes next to the offsets where 32-bit
// arithmetic would wrap; no other element may change.
TEST_F(WriteKvGpuTest, WritesBeyondTwoToThe31Elements) {
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < size_t{9} << 30) GTEST_SKIP() << "needs 9 GiB of free device memory";

  constexpr int64_t kBlockElements = 2 * 16 * 8 * 128;  // K and V
  constexpr int kNumBlocks = (int64_t{1} << 31) / kBlockElements + 8;
  KvLayoutOptions options = LlamaLayout(KvForm::kPacked, KvOrder::kNHD);
  options.num_blocks = kNumBlocks;
  KvCache cache = *KvCache::Create(*KvLayout::Create(options), kGpu);
  ASSERT_TRUE(cache.Fill(kNan).ok());

  const int64_t border = int64_t{kNumBlocks - 8} * 16;  // the first slot at 2^31 elements
  const std::vector<int64_t> slots = {16,     border / 2,  border - 1,
                                      border, border + 17, int64_t{kNumBlocks} * 16 - 1};
  const int num_tokens = static_cast<int>(slots.size());
  const at::Tensor k = at::arange(num_tokens * 8 * 128).remainder(251).view({num_tokens, 8, 128});
  const at::Tensor v = k.add(1);
  const auto bf16 = at::TensorOptions(kGpu).dtype(at::kBFloat16);
  // Includes -1 and slots past the end of the cache.
  std::vector<int64_t> mapping = slots;
  mapping.push_back(-1);
  mapping.push_back(int64_t{kNumBlocks} * 16);
  const auto with_two_more = [&](const at::Tensor& t) {
    at::Tensor longer = at::full({num_tokens + 2, 8, 128}, 99.0f, bf16);
    longer.narrow(0, 0, num_tokens).copy_(t);
    return longer;
  };
  ASSERT_TRUE(WriteKv(cache.layer(0), with_two_more(k), with_two_more(v), Slots(mapping)).ok());

  const at::Tensor kv = cache.tensors(0)[0];  // [num_blocks, 2, 16, 8, 128]
  for (int i = 0; i < num_tokens; ++i) {
    const at::Tensor got = kv[slots[i] / 16].select(1, slots[i] % 16).cpu().to(at::kLong);
    EXPECT_TRUE(got[0].equal(k[i])) << "k at slot " << slots[i];
    EXPECT_TRUE(got[1].equal(v[i])) << "v at slot " << slots[i];
  }
  int64_t num_written = 0;
  for (const at::Tensor& part : kv.split(4096)) {
    num_written += part.numel() - at::isnan(part).sum().item<int64_t>();
  }
  EXPECT_EQ(num_written, num_tokens * 2 * 8 * 128);
}

TEST_F(WriteKvGpuTest, RejectsArgumentsThatCudaDoesNotSupport) {
  KvLayoutOptions options = LlamaLayout(KvForm::kPair, KvOrder::kNHD);
  KvCache cache = *KvCache::Create(*KvLayout::Create(options), kGpu);
  const at::Tensor k = at::zeros({1, 8, 128}, at::TensorOptions(kGpu).dtype(at::kDouble));
  absl::Status status = WriteKv(cache.layer(0), k, k, Slots({0}));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected float32, float16 or bfloat16, got float64"));

  const at::Tensor good = k.to(at::kFloat);
  status = WriteKv(cache.layer(0), good, good, at::zeros({1}, at::kLong));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("slot_mapping has the wrong device: expected cuda:0, got cpu"));
}

}  // namespace
}  // namespace reprise
