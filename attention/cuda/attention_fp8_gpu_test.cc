// Tests fp8 caches with bfloat16 queries, which are multiplied in float16: queries beyond the range
// of float16, weights below its range, and NaN must not be lost. Tests single queries and prompts,
// which different kernels serve, and queries of every 16-bit and 8-bit type.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kHeads = 4;  // q heads, over one KV head

struct AttendOptions {
  int num_sms = 132;
  int num_hidden = 0;              // keys at the end of k and v that no query sees
  std::optional<int> window = {};  // keys before its position that a query sees
  int max_tier = 2;
};

// Attention of one row over k and v, which are one block of the cache. Returns float64 [queries,
// heads, head_dim].
at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                  const AttendOptions& options = {}) {
  const int num_queries = static_cast<int>(q.size(0));
  const int block_size = static_cast<int>(k.size(0));
  const int num_keys = block_size - options.num_hidden;
  const int head_dim = static_cast<int>(k.size(1));
  const DType q_dtype = *FromScalarType(q.scalar_type());
  const auto ints = [](std::initializer_list<int32_t> values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(at::kCUDA);
  };
  const at::Tensor start_loc = ints({0, num_queries});
  const at::Tensor seq_lens = ints({num_keys});
  const at::Tensor table = ints({0});
  const PagedBatch batch = {.query_start_loc = start_loc.const_data_ptr<int32_t>(),
                            .seq_lens = seq_lens.const_data_ptr<int32_t>(),
                            .block_table = table.const_data_ptr<int32_t>(),
                            .block_table_stride = 1,
                            .num_rows = 1,
                            .num_tokens = num_queries,
                            .max_query_len = num_queries,
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
                      .block_size = block_size,
                      .num_kv_heads = 1,
                      .head_dim_qk = head_dim,
                      .head_dim_v = head_dim};
  const AttentionParams layer = {.num_q_heads = kHeads,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = head_dim,
                                 .head_dim_v = head_dim,
                                 .scale = static_cast<float>(scale),
                                 .window_left = options.window};
  GpuTileSchedule work({.dtype = q_dtype,
                        .num_q_heads = kHeads,
                        .num_kv_heads = 1,
                        .head_dim_qk = head_dim,
                        .head_dim_v = head_dim,
                        .max_rows = 1,
                        .max_tokens = num_queries,
                        .max_query_len = num_queries,
                        .max_seq_len = num_keys,
                        .device = {.num_sms = options.num_sms},
                        .kernels = {.max_tier = options.max_tier}});
  work.Poison();
  const absl::StatusOr<BatchSchedule> built = LaunchTileSchedule(
      batch, WindowOf(layer), work.schedule(), c10::cuda::getCurrentCUDAStream());
  EXPECT_TRUE(built.ok()) << built.status();
  at::Tensor out = at::full({num_queries, kHeads, head_dim}, NAN, q.options().dtype(at::kFloat));
  const absl::Status status = PagedAttention(layer, batch, *built, q, kv, {out});
  EXPECT_TRUE(status.ok()) << status;
  return out.to(at::kDouble);
}

// The reference of Attend(), by the definition of attention, in float64.
at::Tensor Expected(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                    const AttendOptions& options = {}) {
  const int64_t num_keys = k.size(0) - options.num_hidden;
  const at::Tensor keys = k.slice(0, 0, num_keys).to(at::kDouble);
  const at::Tensor values = v.slice(0, 0, num_keys).to(at::kDouble);
  // [heads, queries, keys]
  const at::Tensor logits = q.to(at::kDouble).transpose(0, 1).matmul(keys.t()) * scale;
  const at::Tensor key = at::arange(num_keys, q.options().dtype(at::kLong)).unsqueeze(0);
  const at::Tensor position =
      at::arange(num_keys - q.size(0), num_keys, q.options().dtype(at::kLong)).unsqueeze(1);
  at::Tensor is_hidden = key > position;
  if (options.window) is_hidden = is_hidden.logical_or(key < position - *options.window);
  return logits.masked_fill(is_hidden, -INFINITY).softmax(2).matmul(values).transpose(0, 1);
}

void ExpectClose(const at::Tensor& out, const at::Tensor& expected) {
  EXPECT_LT((out - expected).norm().item<double>(), 1e-3 * expected.norm().item<double>());
}

class AttentionFp8SmallGpuTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  at::TensorOptions Floats() const { return at::TensorOptions(at::kCUDA).dtype(at::kFloat); }
  at::Tensor Stored(const at::Tensor& floats) const { return floats.to(GetParam()); }
};

TEST_P(AttentionFp8SmallGpuTest, QueryMagnitudeDoesNotChangeResultsBitwise) {
  const at::Tensor q = at::randn({1, kHeads, 128}, Floats()).to(at::kBFloat16);
  const at::Tensor k = Stored(at::randn({300, 128}, Floats()));
  const at::Tensor v = Stored(at::randn({300, 128}, Floats()));
  const double scale = 1 / std::sqrt(128.0);
  const at::Tensor out = Attend(q, k, v, scale);
  ExpectClose(out, Expected(q, k, v, scale));
  for (const int exponent : {-100, -40, 20, 110}) {
    const at::Tensor scaled = q * std::ldexp(1.0, exponent);
    EXPECT_TRUE(Attend(scaled, k, v, std::ldexp(scale, -exponent)).equal(out)) << exponent;
  }
}

TEST_P(AttentionFp8SmallGpuTest, PromptMagnitudeDoesNotChangeResultsBitwise) {
  for (const int head_dim : {64, 112, 128}) {
    const at::Tensor q = at::randn({70, kHeads, head_dim}, Floats()).to(at::kBFloat16);
    const at::Tensor k = Stored(at::randn({300, head_dim}, Floats()));
    const at::Tensor v = Stored(at::randn({300, head_dim}, Floats()));
    const double scale = 1 / std::sqrt(head_dim);
    const at::Tensor out = Attend(q, k, v, scale);
    ExpectClose(out, Expected(q, k, v, scale));
    for (const int exponent : {-100, -40, 20, 110}) {
      const at::Tensor scaled = q * std::ldexp(1.0, exponent);
      EXPECT_TRUE(Attend(scaled, k, v, std::ldexp(scale, -exponent)).equal(out)) << exponent;
    }
  }
}

// Scales normally distributed queries by 2^-10 to 2^9: from equal weights for all keys to all
// weight on one key.
TEST_P(AttentionFp8SmallGpuTest, PromptRowsOfDifferentMagnitudesMatchTheReference) {
  at::Tensor q = at::randn({60, kHeads, 128}, Floats());
  for (int row = 0; row < 60; ++row) q[row] *= std::ldexp(1.0, (row - 30) / 3);
  q = q.to(at::kBFloat16);
  const at::Tensor k = Stored(at::randn({200, 128}, Floats()));
  const at::Tensor v = Stored(at::randn({200, 128}, Floats()));
  for (const int max_tier : {1, 2}) {
    const at::Tensor out = Attend(q, k, v, 1.0 / 128, {.max_tier = max_tier});
    ExpectClose(out, Expected(q, k, v, 1.0 / 128));
  }
}

// The factor that undoes the scaling of a row of zeros is tiny, and underflows to 0 when multiplied
// by a small scale.
TEST_P(AttentionFp8SmallGpuTest, ZeroQueriesWeighVisibleKeysEqually) {
  at::Tensor q = at::randn({70, kHeads, 128}, Floats()).to(at::kBFloat16);
  q.slice(0, 5, 40).zero_();
  const at::Tensor k = Stored(at::randn({300, 128}, Floats()));
  const at::Tensor v = Stored(at::randn({300, 128}, Floats()));
  for (const double scale : {1e-9, 1.0 / 128}) {
    for (const int max_tier : {1, 2}) {
      ExpectClose(Attend(q, k, v, scale, {.max_tier = max_tier}), Expected(q, k, v, scale));
    }
  }
}

TEST_P(AttentionFp8SmallGpuTest, QueriesOfEveryTypeAgreeWithTheDefinition) {
  for (const int head_dim : {64, 256}) {
    const at::Tensor k = Stored(at::randn({300, head_dim}, Floats()));
    const at::Tensor v = Stored(at::randn({300, head_dim}, Floats()));
    for (const at::ScalarType type :
         {at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      // Rows that are adjacent in memory, and rows at addresses that are not multiples of 16 bytes.
      for (const int pitch : {head_dim, head_dim + 3}) {
        const at::Tensor memory = at::randn({70, kHeads, pitch}, Floats()).to(type);
        const at::Tensor q = memory.slice(2, 0, head_dim);
        ExpectClose(Attend(q, k, v, 0.0625), Expected(q, k, v, 0.0625));
      }
    }
  }
}

// Keys after the last visible key and before the window hold every bit pattern of the type,
// including NaN and the infinities of e5m2.
TEST_P(AttentionFp8SmallGpuTest, ContentsOfUnseenKeysDoNotAffectResults) {
  at::Tensor k = at::randn({500, 128}, Floats()).to(GetParam());
  at::Tensor v = at::randn({500, 128}, Floats()).to(GetParam());
  const at::Tensor patterns =
      at::arange(100 * 128, Floats().dtype(at::kLong)).to(at::kByte).view({100, 128});
  for (at::Tensor* tensor : {&k, &v}) {
    const at::Tensor bytes = tensor->view(at::kByte);
    bytes.slice(0, 0, 100).copy_(patterns);
    bytes.slice(0, 50, 150).copy_(patterns);
    bytes.slice(0, 400, 500).copy_(patterns);
  }
  const at::Tensor q = at::randn({150, kHeads, 128}, Floats()).to(at::kBFloat16);
  // Queries at positions 250 to 399 see keys at positions 150 and later.
  const AttendOptions options = {.num_hidden = 100, .window = 100};
  const at::Tensor sound_k = k.slice(0, 150).to(at::kFloat);
  const at::Tensor sound_v = v.slice(0, 150).to(at::kFloat);
  ExpectClose(Attend(q, k, v, 0.125, options), Expected(q, sound_k, sound_v, 0.125, options));
}

// One key with logit 17 and value 0, and 100,000 keys with logit 0 and value 1: e^-17 is 0.69 of
// the smallest float16.
TEST_P(AttentionFp8SmallGpuTest, ManyKeysWithSmallWeightsAreNotLost) {
  constexpr int kNumKeys = 100'001;
  at::Tensor q = at::zeros({1, kHeads, 128}, Floats().dtype(at::kBFloat16));
  q.select(2, 0).fill_(1);
  at::Tensor k = at::zeros({kNumKeys, 128}, Floats());
  k[0][0] = 16;
  at::Tensor v = at::full({kNumKeys, 128}, 1.0, Floats());
  v[0] = 0;
  const double others = (kNumKeys - 1) * std::exp(-17.0);
  const double expected = others / (1 + others);
  // A schedule for one SM, so that the split of the first key has many keys.
  const at::Tensor out = Attend(q, Stored(k), Stored(v), 17.0 / 16, {.num_sms = 1});
  EXPECT_NEAR(out.min().item<double>(), expected, 1e-3 * expected);
  EXPECT_NEAR(out.max().item<double>(), expected, 1e-3 * expected);
}

TEST_P(AttentionFp8SmallGpuTest, VisibleNanReachesOnlyItsColumnOfOut) {
  const at::Tensor q = at::randn({1, kHeads, 64}, Floats()).to(at::kHalf);
  const at::Tensor k = Stored(at::randn({70, 64}, Floats()));
  at::Tensor v = at::randn({70, 64}, Floats());
  v[33][5] = NAN;
  const at::Tensor is_nan = Attend(q, k, Stored(v), 0.125).isnan();
  EXPECT_TRUE(is_nan.select(2, 5).all().item<bool>());
  EXPECT_EQ(is_nan.sum().item<int64_t>(), kHeads);
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionFp8SmallGpuTest,
                         ::testing::Values(at::kFloat8_e4m3fn, at::kFloat8_e5m2));

}  // namespace
}  // namespace reprise
