// AttentionExtras on the CPU, through tensors, and the extras that every device rejects.
// attention/cpu/host_attention_test.cc and, on a GPU, attention/cuda/attention_gpu_test.cc check
// the numbers.

#include "reprise/attention/attention_extras.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/attention.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row: 2 queries at the end of 5 keys in 2 blocks of 4; 2 q heads over 1 KV head of 16 dims.
class Call {
 public:
  Call() {
    layer = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 16, .head_dim_v = 16};
    batch = {.query_start_loc = query_start_loc.data(),
             .seq_lens = seq_lens.data(),
             .block_table = block_table.data(),
             .num_rows = 1,
             .num_tokens = 2,
             .max_query_len = 2,
             .max_seq_len = 5,
             .num_tables = 1,
             .max_blocks = 2};
    out = at::empty({2, 2, 16});
  }

  KvLayer Kv() {
    const auto view = [](const at::Tensor& cache) {
      return KvView{.data = cache.data_ptr(),
                    .block_stride = cache.stride(0),
                    .token_stride = cache.stride(1),
                    .head_stride = cache.stride(2),
                    .dim_chunk = 16};
    };
    return {.k = view(k),
            .v = view(v),
            .dtype = DType::kFloat32,
            .num_blocks = 3,
            .block_size = 4,
            .num_kv_heads = 1,
            .head_dim_qk = 16,
            .head_dim_v = 16};
  }

  absl::Status Run() {
    return PagedAttention(layer, batch, BatchSchedule{}, q, Kv(), {out}, extras);
  }
  std::string Message() { return std::string(Run().message()); }

  const std::vector<int32_t> query_start_loc = {0, 2};
  const std::vector<int32_t> seq_lens = {5};
  const std::vector<int32_t> block_table = {2, 1};
  AttentionParams layer;
  PagedBatch batch;
  at::Tensor k = at::rand({3, 4, 1, 16});
  at::Tensor v = at::rand({3, 4, 1, 16});
  at::Tensor q = at::rand({2, 2, 16});
  at::Tensor out;
  AttentionExtras extras;
};

float Distance(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<float>();
}

TEST(AttentionExtrasTest, NewKeysReplaceCachedKeys) {
  Call call;
  ASSERT_TRUE(call.Run().ok());
  const at::Tensor expected = call.out.clone();
  // Keys 3 and 4: the last token of block 2 and the first token of block 1.
  at::Tensor new_k = at::empty({2, 1, 16});
  at::Tensor new_v = at::empty({2, 1, 16});
  for (int i : {0, 1}) {
    const int block = i == 0 ? 2 : 1;
    const int token = i == 0 ? 3 : 0;
    new_k[i].copy_(call.k[block][token]);
    new_v[i].copy_(call.v[block][token]);
    call.k[block][token].fill_(kNan);
    call.v[block][token].fill_(kNan);
  }
  call.extras = {.new_k = &new_k, .new_v = &new_v};
  ASSERT_TRUE(call.Run().ok());
  EXPECT_LT(Distance(call.out, expected), 1e-6f);
}

TEST(AttentionExtrasTest, OutIsQuantisedWithOneScale) {
  Call call;
  ASSERT_TRUE(call.Run().ok());
  const at::Tensor exact = call.out;
  call.out = at::empty({2, 2, 16}, at::kFloat8_e4m3fn);
  call.extras.out_scale.value = 0.005f;
  ASSERT_TRUE(call.Run().ok());
  // Values of rand() are below 1, and e4m3's error is at most 1/16 of a value.
  EXPECT_LT(Distance(call.out.to(at::kFloat) * 0.005f, exact), 1.0f / 16);
  EXPECT_GT(call.out.to(at::kFloat).max().item<float>(), 50.0f);
}

TEST(AttentionExtrasTest, BlockScalesMapTheLargestValueToTheLargestOfTheType) {
  Call call;
  ASSERT_TRUE(call.Run().ok());
  const at::Tensor exact = call.out;
  call.out = at::empty({2, 2, 16}, at::kFloat8_e4m3fn);
  at::Tensor scales = at::full({2, 2, 4}, kNan);
  call.extras.out_block_scales = &scales;
  ASSERT_TRUE(call.Run().ok());
  const at::Tensor stored = call.out.to(at::kFloat).view({2, 2, 4, 4});
  EXPECT_LT(Distance((stored * scales.unsqueeze(3)).view({2, 2, 16}), exact), 1.0f / 16);
  EXPECT_EQ(stored.abs().amax(3).min().item<float>(), 448.0f);
}

TEST(AttentionExtrasTest, RejectsInvalidExtrasByName) {
  Call call;
  at::Tensor keys = at::rand({2, 1, 16});
  at::Tensor short_keys = at::rand({1, 1, 16});
  at::Tensor half_keys = keys.to(at::kHalf);
  at::Tensor scales = at::rand({2, 2, 4});
  at::Tensor odd_scales = at::rand({2, 2, 3});
  call.extras = {.new_k = &keys};
  EXPECT_THAT(call.Message(), HasSubstr("new_k and new_v must be given together"));
  call.extras = {.new_k = &short_keys, .new_v = &keys};
  EXPECT_THAT(call.Message(), HasSubstr("new_k must be [>= num_tokens"));
  call.extras = {.new_k = &half_keys, .new_v = &half_keys};
  EXPECT_THAT(call.Message(), HasSubstr("new_k has the wrong dtype"));
  call.extras = {.out_scale = {.value = 0.5f}};
  EXPECT_THAT(call.Message(), HasSubstr("out must have an fp8 dtype if it is scaled"));
  call.out = at::empty({2, 2, 16}, at::kFloat8_e5m2);
  call.extras = {.out_scale = {.value = 0.0f}};
  EXPECT_THAT(call.Message(), HasSubstr("out_scale: expected a positive, finite number, got 0"));
  call.extras = {.out_scale = {.value = 0.5f}, .out_block_scales = &scales};
  EXPECT_THAT(call.Message(),
              HasSubstr("out_scale must not be given together with out_block_scales"));
  call.extras = {.out_block_scales = &odd_scales};
  EXPECT_THAT(call.Message(), HasSubstr("expected blocks of a multiple of 4 columns"));
  call.extras = {};
  EXPECT_TRUE(call.Run().ok());
}

TEST(AttentionExtrasTest, ContiguousFp8KeysMatchACacheWithTheSameScales) {
  Call call;
  const std::vector<int32_t> key_start_loc = {0, 5};
  const std::vector<float> k_scales = {0.25f}, v_scales = {3.0f};
  const RaggedBatch ragged = {.query_start_loc = call.query_start_loc.data(),
                              .key_start_loc = key_start_loc.data(),
                              .num_rows = 1,
                              .num_tokens = 2,
                              .num_keys = 5,
                              .max_query_len = 2,
                              .max_seq_len = 5};
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    call.k = at::rand({3, 4, 1, 16}).to(type);
    call.v = at::rand({3, 4, 1, 16}).to(type);
    KvLayer kv = call.Kv();
    kv.dtype = type == at::kFloat8_e5m2 ? DType::kFp8E5M2 : DType::kFp8E4M3;
    kv.k_scale = {.data = k_scales.data()};
    kv.v_scale = {.data = v_scales.data()};
    at::Tensor expected = at::empty({2, 2, 16});
    ASSERT_TRUE(
        PagedAttention(call.layer, call.batch, BatchSchedule{}, call.q, kv, {expected}).ok());

    const auto contiguous = [](const at::Tensor& cache) {  // blocks 2 and 1
      const at::Tensor bytes = cache.view(at::kByte);
      return at::cat({bytes[2], bytes[1].narrow(0, 0, 1)}).view(cache.scalar_type());
    };
    const at::Tensor k = contiguous(call.k), v = contiguous(call.v);
    ASSERT_TRUE(RaggedAttention(call.layer, ragged, BatchSchedule{}, call.q,
                                {k, v, kv.k_scale, kv.v_scale}, {call.out})
                    .ok());
    EXPECT_LT(Distance(call.out, expected), 1e-6f);
    EXPECT_GT(expected.abs().max().item<float>(), 1.0f);  // v_scale is 3
  }
}

TEST(AttentionExtrasTest, Fp8QueriesAllowADifferentOutDtype) {
  Call call;
  call.q = call.q.to(at::kFloat8_e4m3fn);
  ASSERT_TRUE(call.Run().ok());
  const at::Tensor exact = call.out.clone();
  call.out = at::empty({2, 2, 16}, at::kBFloat16);
  ASSERT_TRUE(call.Run().ok());
  EXPECT_LT(Distance(call.out, exact), 1.0f / 128);
  call.out = at::empty({2, 2, 16}, at::kDouble);
  EXPECT_THAT(call.Message(), HasSubstr("out has the wrong dtype"));
}

}  // namespace
}  // namespace reprise
