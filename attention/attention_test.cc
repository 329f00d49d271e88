#include "reprise/attention/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/element_access.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor AsTensor(const TokenView& view, int num_tokens, int num_heads, int head_dim) {
  return at::from_blob(view.data, {num_tokens, num_heads, head_dim},
                       {view.token_stride, view.head_stride, 1},
                       at::TensorOptions().dtype(ToScalarType(view.dtype)));
}

at::Tensor Poisoned(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::full(sizes, NAN, at::TensorOptions().dtype(dtype));
}

// Allows a loose tolerance: attention/cpu/host_attention_test.cc checks the same code with a
// derived tolerance. This file tests the path through tensors.
void ExpectClose(const ReferenceResult<double>& expected, const at::Tensor& out,
                 const at::Tensor& lse) {
  const TokenView values = {.data = out.data_ptr(), .dtype = *FromScalarType(out.scalar_type())};
  const double tolerance = values.dtype == DType::kFloat32 ? 1e-3 : 0.05;
  for (size_t i = 0; i < expected.out.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    ASSERT_NEAR(LoadElement<double>(values.data, values.dtype, index), expected.out[i],
                tolerance * std::max(1.0, std::abs(expected.out[i])));
  }
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    const float got = lse.const_data_ptr<float>()[i];
    if (expected.lse[i] == -kInf) {
      ASSERT_EQ(got, -kInf);
    } else {
      ASSERT_NEAR(got, expected.lse[i], 1e-3);
    }
  }
}

TEST(AttentionTest, PagedAttentionMatchesTheReferenceForAnyThreadCount) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed, .max_seq_len = 700});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const PagedBatch batch = fixture.Batch(OnHost);
    const KvLayer kv = fixture.Kv(OnHost);
    const at::Tensor q =
        AsTensor(fixture.Q(OnHost), batch.num_tokens, layer.num_q_heads, layer.head_dim_qk);
    std::vector<at::Tensor> outs;
    for (int num_threads : {1, 3}) {
      at::set_num_threads(num_threads);
      at::Tensor out = Poisoned({batch.num_tokens, layer.num_q_heads, layer.head_dim_v},
                                seed % 2 == 0 ? at::kFloat : q.scalar_type());
      at::Tensor lse = Poisoned({batch.num_tokens, layer.num_q_heads}, at::kFloat);
      const absl::Status status = PagedAttention(layer, batch, BatchSchedule{}, q, kv, {out, &lse});
      ASSERT_TRUE(status.ok()) << status;
      ExpectClose(ReferencePagedAttention<double>(layer, batch, fixture.Q(OnHost), kv), out, lse);
      outs.push_back(out);
    }
    ASSERT_TRUE(at::equal(outs[0], outs[1]));
  }
}

TEST(AttentionTest, RaggedAttentionMatchesTheReference) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const RaggedFixture fixture = MakeRaggedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const RaggedBatch batch = fixture.Batch(OnHost);
    const TokenView q = fixture.q.View(OnHost);
    const TokenView k = fixture.k.View(OnHost);
    const TokenView v = fixture.v.View(OnHost);
    at::Tensor out =
        Poisoned({batch.num_tokens, layer.num_q_heads, layer.head_dim_v}, ToScalarType(q.dtype));
    at::Tensor lse = Poisoned({batch.num_tokens, layer.num_q_heads}, at::kFloat);
    const absl::Status status =
        RaggedAttention(layer, batch, BatchSchedule{},
                        AsTensor(q, batch.num_tokens, layer.num_q_heads, layer.head_dim_qk),
                        {AsTensor(k, batch.num_keys, layer.num_kv_heads, layer.head_dim_qk),
                         AsTensor(v, batch.num_keys, layer.num_kv_heads, layer.head_dim_v)},
                        {out, &lse});
    ASSERT_TRUE(status.ok()) << status;
    ExpectClose(ReferenceRaggedAttention<double>(layer, batch, q, k, v), out, lse);
  }
}

// Two queries at the end of three keys, block_size 2, 2 q heads over 1 KV head of 4 dims.
class PagedCall {
 public:
  PagedCall()
      : memory_({.num_blocks = 3,
                 .block_size = 2,
                 .num_kv_heads = 1,
                 .head_dim_qk = 4,
                 .head_dim_v = 4}) {
    for (int key = 0; key < 3; ++key) {
      for (int d = 0; d < 4; ++d) {
        memory_.SetK(block_table[key / 2], key % 2, 0, d, 0.1 * key);
        memory_.SetV(block_table[key / 2], key % 2, 0, d, key);
      }
    }
    kv = memory_.View(OnHost);
    batch = {.query_start_loc = query_start_loc.data(),
             .seq_lens = seq_lens.data(),
             .block_table = block_table.data(),
             .block_table_stride = 2,
             .num_rows = 1,
             .num_tokens = 2,
             .max_query_len = 2,
             .max_seq_len = 4,
             .num_tables = 1,
             .max_blocks = 2};
  }

  absl::Status Run() {
    return PagedAttention(layer, batch, BatchSchedule{}, q, kv, {out, lse ? &*lse : nullptr});
  }

  std::vector<int32_t> query_start_loc = {0, 2};
  std::vector<int32_t> seq_lens = {3};
  std::vector<int32_t> block_table = {2, 1};
  AttentionParams layer = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 4, .head_dim_v = 4};
  PagedBatch batch;
  KvLayer kv;
  at::Tensor q = at::zeros({2, 2, 4});
  at::Tensor out = Poisoned({2, 2, 4}, at::kFloat);
  std::optional<at::Tensor> lse;

 private:
  KvMemory memory_;
};

TEST(AttentionTest, ZeroQueriesAverageTheirVisibleValues) {
  PagedCall call;
  ASSERT_TRUE(call.Run().ok());
  EXPECT_FLOAT_EQ(call.out[0][0][0].item<float>(), 0.5f);  // keys 0 and 1
  EXPECT_FLOAT_EQ(call.out[1][1][3].item<float>(), 1.0f);  // keys 0, 1 and 2
}

TEST(AttentionTest, ClearsRowsOfOutAndLseAfterTheBatch) {
  PagedCall call;
  call.out = Poisoned({5, 2, 4}, at::kFloat);
  call.lse = Poisoned({3, 2}, at::kFloat);
  ASSERT_TRUE(call.Run().ok());
  EXPECT_TRUE(at::equal(call.out.slice(0, 2), at::zeros({3, 2, 4})));
  EXPECT_TRUE(at::equal(call.lse->slice(0, 2), at::full({1, 2}, -kInf)));
  EXPECT_FLOAT_EQ((*call.lse)[1][0].item<float>(), std::log(3.0f));
}

TEST(AttentionTest, LseMayHaveMoreTokensThanOut) {
  PagedCall call;
  call.lse = Poisoned({5, 2}, at::kFloat);
  ASSERT_TRUE(call.Run().ok());
  EXPECT_TRUE(at::equal(call.lse->slice(0, 2), at::full({3, 2}, -kInf)));
}

TEST(AttentionTest, QMayBeASliceOfAFusedProjectionAndOutOfALargerTensor) {
  PagedCall call;
  const at::Tensor fused = Poisoned({2, 2 * 4 + 8}, at::kFloat);
  call.q = fused.narrow(1, 8, 8).view({2, 2, 4});
  call.q.zero_();
  const at::Tensor larger = Poisoned({2, 3, 7}, at::kFloat);
  call.out = larger.narrow(1, 1, 2).narrow(2, 2, 4);
  ASSERT_TRUE(call.Run().ok());
  EXPECT_FLOAT_EQ(call.out[1][1][3].item<float>(), 1.0f);
  EXPECT_TRUE(larger.narrow(1, 0, 1).isnan().all().item<bool>());
}

template <typename Change>
std::string RefusalOf(const Change& change) {
  PagedCall call;
  change(call);
  const absl::Status status = call.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(!call.out.defined() || call.out.scalar_type() != at::kFloat ||
              call.out.isnan().all().item<bool>())
      << "something was written";
  return std::string(status.message());
}

TEST(AttentionTest, RejectsInvalidArgumentsByName) {
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.q = at::zeros({1, 2, 4});
              }),
              HasSubstr("q must be [>= num_tokens, num_q_heads, head_dim_qk]"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.q = at::zeros({2, 3, 4});
              }),
              HasSubstr("got [2, 3, 4]"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.q = at::zeros({2, 2, 4}, at::kDouble);
              }),
              HasSubstr("q has the wrong dtype"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.q = at::zeros({2, 4, 2}).transpose(1, 2);
              }),
              HasSubstr("q must have stride 1"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.out = Poisoned({2, 2, 5}, at::kFloat);
              }),
              HasSubstr("out must be"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.out = at::zeros({2, 2, 4}, at::kHalf);
              }),
              HasSubstr("out has the wrong dtype"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.out = at::Tensor(); }), HasSubstr("out"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.lse = at::zeros({1, 2});
              }),
              HasSubstr("lse must be"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) {
                call.lse = at::zeros({2, 2}, at::kHalf);
              }),
              HasSubstr("lse"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.kv.k.data = nullptr; }), HasSubstr("kv.k"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.layer.softcap = -1.0f; }), HasSubstr("softcap"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.batch.seq_lens = nullptr; }),
              HasSubstr("seq_lens"));
}

TEST(AttentionTest, CpuChecksArraysBeforeItWrites) {
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.block_table[0] = 3; }),
              HasSubstr("block_table[0][0]: expected 0 to 2"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.seq_lens[0] = 5; }), HasSubstr("seq_lens[0]"));
  EXPECT_THAT(RefusalOf([](PagedCall& call) { call.query_start_loc[1] = 3; }),
              HasSubstr("query_start_loc[1]"));
}

TEST(AttentionTest, OtherDevicesAreUnimplemented) {
  PagedCall call;
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  call.q = at::empty({2, 2, 4}, meta);
  EXPECT_EQ(call.Run().code(), absl::StatusCode::kInvalidArgument);  // out is on another device
  call.out = at::empty({2, 2, 4}, meta);
  const absl::Status status = call.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("got meta"));
}

TEST(AttentionTest, RejectsInvalidRaggedArgumentsByName) {
  const std::vector<int32_t> loc = {0, 2};
  const RaggedBatch batch = {.query_start_loc = loc.data(),
                             .key_start_loc = loc.data(),
                             .num_rows = 1,
                             .num_tokens = 2,
                             .num_keys = 2,
                             .max_query_len = 2,
                             .max_seq_len = 2};
  const AttentionParams layer = {
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 4, .head_dim_v = 3};
  const at::Tensor q = at::zeros({2, 2, 4});
  const at::Tensor k = at::zeros({2, 1, 4});
  const at::Tensor v = at::zeros({2, 1, 3});
  at::Tensor out = at::zeros({2, 2, 3});
  EXPECT_TRUE(RaggedAttention(layer, batch, BatchSchedule{}, q, {k, v}, {out}).ok());
  EXPECT_THAT(
      std::string(RaggedAttention(layer, batch, BatchSchedule{}, q, {k, k}, {out}).message()),
      HasSubstr("v must be"));
  EXPECT_THAT(
      std::string(
          RaggedAttention(layer, batch, BatchSchedule{}, q, {k.to(at::kHalf), v}, {out}).message()),
      HasSubstr("k"));
  RaggedBatch longer = batch;
  longer.max_seq_len = 1;
  EXPECT_THAT(
      std::string(RaggedAttention(layer, longer, BatchSchedule{}, q, {k, v}, {out}).message()),
      HasSubstr("key_start_loc[1]"));
}

}  // namespace
}  // namespace reprise
