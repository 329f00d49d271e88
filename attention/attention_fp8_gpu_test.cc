// What products in float16 could lose of caches of fp8 and queries of bfloat16, and must not:
// queries beyond float16's range, weights below it, and NaN.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "attention/attention.h"
#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/testing/gpu_memory.h"
#include "attention/work_map_cuda.h"
#include "attention/work_map_plan.h"
#include "base/torch_dtype.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kHeads = 4;  // of q, over one of the cache

// One query over all of k and v, which are one block of the cache, by `num_sms` multiprocessors:
// float64 [heads, head_dim].
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  int num_sms) {
  const int num_keys = static_cast<int>(k.size(0));
  const int head_dim = static_cast<int>(k.size(1));
  const DType q_dtype = *FromScalarType(q.scalar_type());
  const auto ints = [](std::initializer_list<int32_t> values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(at::kCUDA);
  };
  const at::Tensor start_loc = ints({0, 1});
  const at::Tensor seq_lens = ints({num_keys});
  const at::Tensor table = ints({0});
  const PagedBatch batch = {.query_start_loc = start_loc.const_data_ptr<int32_t>(),
                            .seq_lens = seq_lens.const_data_ptr<int32_t>(),
                            .block_table = table.const_data_ptr<int32_t>(),
                            .block_table_stride = 1,
                            .num_rows = 1,
                            .num_tokens = 1,
                            .max_query_len = 1,
                            .max_seq_len = num_keys,
                            .num_tables = 1,
                            .max_blocks = 1};
  const auto view = [&](const at::Tensor& tensor) {
    return KvView{.data = tensor.data_ptr(),
                  .block_stride = tensor.numel(),
                  .token_stride = head_dim,
                  .head_stride = head_dim,
                  .dim_chunk = head_dim};
  };
  const KvLayer kv = {.k = view(k),
                      .v = view(v),
                      .dtype = *FromScalarType(k.scalar_type()),
                      .num_blocks = 1,
                      .block_size = num_keys,
                      .num_kv_heads = 1,
                      .head_dim_qk = head_dim,
                      .head_dim_v = head_dim};
  const AttentionParams layer = {.num_q_heads = kHeads,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = head_dim,
                                 .head_dim_v = head_dim,
                                 .scale = static_cast<float>(scale)};
  GpuWorkMap work({.dtype = q_dtype,
                   .num_q_heads = kHeads,
                   .num_kv_heads = 1,
                   .head_dim_qk = head_dim,
                   .head_dim_v = head_dim,
                   .max_rows = 1,
                   .max_tokens = 1,
                   .max_query_len = 1,
                   .max_seq_len = num_keys,
                   .num_sms = num_sms});
  work.Poison();
  EXPECT_TRUE(
      LaunchBuildWorkMap(batch, LayerWindow{}, work.map(), c10::cuda::getCurrentCUDAStream()).ok());
  at::Tensor out = at::full({1, kHeads, head_dim}, NAN, q.options().dtype(at::kFloat));
  const absl::Status status = PagedAttention(layer, batch, work.map(), q, kv, out, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return out[0].to(at::kDouble);
}

class AttentionFp8SmallGpuTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  at::TensorOptions Floats() const { return at::TensorOptions(at::kCUDA).dtype(at::kFloat); }
  at::Tensor Stored(const at::Tensor& floats) const { return floats.to(GetParam()); }
};

TEST_P(AttentionFp8SmallGpuTest, QueriesOfAnyMagnitudeGiveTheSameBits) {
  const at::Tensor q = at::randn({1, kHeads, 128}, Floats()).to(at::kBFloat16);
  const at::Tensor k = Stored(at::randn({300, 128}, Floats()));
  const at::Tensor v = Stored(at::randn({300, 128}, Floats()));
  const double scale = 1 / std::sqrt(128.0);
  const at::Tensor out = Attend(q, k, v, scale, 132);
  const at::Tensor logits = q[0].to(at::kDouble).matmul(k.to(at::kDouble).t()) * scale;
  const at::Tensor exact = logits.softmax(1).matmul(v.to(at::kDouble));
  EXPECT_LT((out - exact).norm().item<double>(), 1e-3 * exact.norm().item<double>());
  for (const int exponent : {-100, -40, 20, 110}) {
    const at::Tensor scaled = q * std::ldexp(1.0, exponent);
    EXPECT_TRUE(Attend(scaled, k, v, std::ldexp(scale, -exponent), 132).equal(out)) << exponent;
  }
}

// One key of logit 17, whose value is 0, and 100,000 of logit 0, whose values are 1: e^-17 is 0.69
// of the least float16.
TEST_P(AttentionFp8SmallGpuTest, ManyKeysOfLittleWeightCount) {
  constexpr int kNumKeys = 100'001;
  at::Tensor q = at::zeros({1, kHeads, 128}, Floats().dtype(at::kBFloat16));
  q.select(2, 0).fill_(1);
  at::Tensor k = at::zeros({kNumKeys, 128}, Floats());
  k[0][0] = 16;
  at::Tensor v = at::full({kNumKeys, 128}, 1.0, Floats());
  v[0] = 0;
  const double others = (kNumKeys - 1) * std::exp(-17.0);
  const double expected = others / (1 + others);
  // By few, so that the first key is in the company of many.
  const at::Tensor out = Attend(q, Stored(k), Stored(v), 17.0 / 16, 1);
  EXPECT_NEAR(out.min().item<double>(), expected, 1e-3 * expected);
  EXPECT_NEAR(out.max().item<double>(), expected, 1e-3 * expected);
}

TEST_P(AttentionFp8SmallGpuTest, NanThatIsSeenReachesOutAndNothingElseDoes) {
  const at::Tensor q = at::randn({1, kHeads, 64}, Floats()).to(at::kHalf);
  const at::Tensor k = Stored(at::randn({70, 64}, Floats()));
  at::Tensor v = at::randn({70, 64}, Floats());
  v[33][5] = NAN;
  const at::Tensor is_nan = Attend(q, k, Stored(v), 0.125, 132).isnan();
  EXPECT_TRUE(is_nan.select(1, 5).all().item<bool>());
  EXPECT_EQ(is_nan.sum().item<int64_t>(), kHeads);
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionFp8SmallGpuTest,
                         ::testing::Values(at::kFloat8_e4m3fn, at::kFloat8_e5m2));

}  // namespace
}  // namespace reprise
