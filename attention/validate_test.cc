// The defaults of a layer (F13), and the tensors that attention rejects by name (F14).
// attention/checks_test.cc tests the checks of parameters and batches.

#include "reprise/attention/validate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"

namespace reprise {
namespace {

constexpr float kUnwritten = 7.0f;

// One row: 2 queries at the end of 5 keys in 2 blocks of 4; 2 q heads over 1 KV head of 16 dims.
struct Call {
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
            .num_kv_heads = num_cached_heads,
            .head_dim_qk = 16,
            .head_dim_v = 16};
  }

  at::Tensor Out() {
    at::Tensor result = at::full({2, 2, 16}, kUnwritten);
    const absl::Status status = PagedAttention(layer, batch, BatchSchedule{}, q, Kv(), {result});
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }

  const std::vector<int32_t> query_start_loc = {0, 2};
  const std::vector<int32_t> seq_lens = {5};
  const std::vector<int32_t> block_table = {2, 1};
  AttentionParams layer = {
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 16, .head_dim_v = 16};
  PagedBatch batch = {.query_start_loc = query_start_loc.data(),
                      .seq_lens = seq_lens.data(),
                      .block_table = block_table.data(),
                      .num_rows = 1,
                      .num_tokens = 2,
                      .max_query_len = 2,
                      .max_seq_len = 5,
                      .num_tables = 1,
                      .max_blocks = 2};
  int num_cached_heads = 1;
  at::Tensor k = at::rand({3, 4, 1, 16});
  at::Tensor v = at::rand({3, 4, 1, 16});
  at::Tensor q = at::rand({2, 2, 16}) * 4;
  at::Tensor out = at::full({2, 2, 16}, kUnwritten);
  at::Tensor lse = at::full({2, 2}, kUnwritten);
};

TEST(ValidateTest, DefaultScaleIsTheInverseRootOfTheHeadDim) {
  Call call;
  const at::Tensor by_default = call.Out();
  call.layer.scale = 0.25f;  // 1 / sqrt(16)
  EXPECT_TRUE(at::equal(call.Out(), by_default));
  call.layer.scale = 1.0f;
  EXPECT_FALSE(at::equal(call.Out(), by_default));
}

TEST(ValidateTest, SoftcapAndRotaryAreOffByDefault) {
  Call call;
  const at::Tensor by_default = call.Out();
  call.layer.softcap = 1.0f;
  EXPECT_FALSE(at::equal(call.Out(), by_default));
  call.layer.softcap.reset();
  call.layer.rotary = RotaryParams{};
  EXPECT_FALSE(at::equal(call.Out(), by_default));
}

TEST(ValidateTest, DefaultRotaryParamsMatchLlamaAndRotateTheWholeHead) {
  Call call;
  call.layer.rotary = RotaryParams{};
  const at::Tensor by_default = call.Out();
  call.layer.rotary = RotaryParams{.rope_scale = 1.0f, .rope_theta = 10000.0f, .rotary_dim = 16};
  EXPECT_TRUE(at::equal(call.Out(), by_default));
  call.layer.rotary->rope_theta = 500000.0f;
  EXPECT_FALSE(at::equal(call.Out(), by_default));
  call.layer.rotary = RotaryParams{.rope_scale = 2.0f};
  EXPECT_FALSE(at::equal(call.Out(), by_default));
  call.layer.rotary = RotaryParams{.rotary_dim = 8};
  EXPECT_FALSE(at::equal(call.Out(), by_default));
}

TEST(ValidateTest, RejectsInvalidTensorsByNameWithoutWriting) {
  const struct {
    std::string message;
    std::function<void(Call&)> spoil;
  } kRefusals[] = {
      {"num_q_heads: expected a multiple of num_kv_heads (2), got 3",
       [](Call& call) { call.layer.num_q_heads = 3, call.layer.num_kv_heads = 2; }},
      {"q",
       [](Call& call) {
         call.q = at::rand({1, 2, 16});
       }},
      {"q",
       [](Call& call) {
         call.q = at::rand({2, 4, 16});
       }},
      {"q",
       [](Call& call) {
         call.q = at::rand({2, 2, 8});
       }},
      {"q", [](Call& call) { call.q = call.q.to(at::kDouble); }},
      {"q",
       [](Call& call) {
         call.q = at::rand({2, 16, 2}).transpose(1, 2);
       }},
      {"out",
       [](Call& call) {
         call.out = at::full({2, 2, 8}, kUnwritten);
       }},
      {"out", [](Call& call) { call.out = call.out.to(at::kHalf); }},  // differs from q's type
      {"lse",
       [](Call& call) {
         call.lse = at::full({2, 1}, kUnwritten);
       }},
      {"lse", [](Call& call) { call.lse = call.lse.to(at::kHalf); }},
      {"num_kv_heads", [](Call& call) { call.num_cached_heads = 2; }},
  };
  for (const auto& refusal : kRefusals) {
    Call call;
    EXPECT_TRUE(
        ValidatePagedAttention(call.layer, call.batch, call.q, call.Kv(), {call.out, &call.lse})
            .ok());
    refusal.spoil(call);
    const absl::Status status =
        ValidatePagedAttention(call.layer, call.batch, call.q, call.Kv(), {call.out, &call.lse});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.message;
    EXPECT_NE(status.message().find(refusal.message), absl::string_view::npos) << status;
    EXPECT_EQ(PagedAttention(call.layer, call.batch, BatchSchedule{}, call.q, call.Kv(),
                             {call.out, &call.lse}),
              status);
    EXPECT_TRUE(at::equal(call.out, at::full_like(call.out, kUnwritten))) << refusal.message;
    EXPECT_TRUE(at::equal(call.lse, at::full_like(call.lse, kUnwritten))) << refusal.message;
  }
}

TEST(ValidateTest, ContiguousKeysMustHaveTheDtypeOfQOrFp8) {
  const std::vector<int32_t> query_start_loc = {0, 2}, key_start_loc = {0, 5};
  const AttentionParams layer = {
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 16, .head_dim_v = 16};
  const RaggedBatch batch = {.query_start_loc = query_start_loc.data(),
                             .key_start_loc = key_start_loc.data(),
                             .num_rows = 1,
                             .num_tokens = 2,
                             .num_keys = 5,
                             .max_query_len = 2,
                             .max_seq_len = 5};
  const at::Tensor q = at::rand({2, 2, 16}), k = at::rand({5, 1, 16}), v = at::rand({5, 1, 16});
  at::Tensor out = at::empty({2, 2, 16});
  EXPECT_EQ(ValidateRaggedAttention(layer, batch, q, {k, v}, {out}), absl::OkStatus());
  const absl::Status status = ValidateRaggedAttention(layer, batch, q, {k, v.to(at::kHalf)}, {out});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 1), "v") << status;

  const at::Tensor k8 = k.to(at::kFloat8_e5m2), v8 = v.to(at::kFloat8_e5m2);
  const Scale k_scale = {.value = 0.5f}, v_scale = {.value = 2.0f};
  EXPECT_EQ(ValidateRaggedAttention(layer, batch, q, {k8, v8, k_scale, v_scale}, {out}),
            absl::OkStatus());
  EXPECT_EQ(
      ValidateRaggedAttention(layer, batch, q, {k8, v.to(at::kFloat8_e4m3fn)}, {out}).message(),
      "v has the wrong dtype: expected float8_e5m2, got float8_e4m3fn");
  EXPECT_EQ(
      ValidateRaggedAttention(layer, batch, q, {k.to(at::kHalf), v}, {out}).message().substr(0, 1),
      "k");
}

}  // namespace
}  // namespace reprise
