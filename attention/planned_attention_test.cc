#include "reprise/attention/planned_attention.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/attention.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

at::Tensor Ints(std::vector<int> values) { return at::tensor(values, at::kInt); }

at::Tensor Bytes(int64_t count) { return at::full({count}, 0x7f, at::kByte); }

// Two heads of 16 over a cache of 12 blocks of 4.
class PlannedAttentionTest : public ::testing::Test {
 protected:
  PlannedAttentionTest() {
    k_ = at::randn({12, 4, 2, 16});
    v_ = at::randn({12, 4, 2, 16});
    q_ = at::randn({8, 2, 16});
    out_ = at::full({8, 2, 16}, NAN);
    lse_ = at::full({8, 2}, NAN);
  }

  static PlannedAttentionOptions Options() {
    return {.work = {.dtype = DType::kFloat32,
                     .num_q_heads = 2,
                     .num_kv_heads = 2,
                     .head_dim_qk = 16,
                     .head_dim_v = 16,
                     .max_rows = 4,
                     .max_tokens = 8,
                     .max_query_len = 4,
                     .max_seq_len = 16},
            .block_size = 4,
            .window = {.left = 9}};
  }

  static std::unique_ptr<PlannedAttention> Make() {
    absl::StatusOr<std::unique_ptr<PlannedAttention>> made = PlannedAttention::Create(Options());
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  static std::unique_ptr<PlannedAttention> MakeSet() {
    std::unique_ptr<PlannedAttention> made = Make();
    EXPECT_TRUE(made->SetScheduleWorkspace(Bytes(made->schedule_bytes())).ok());
    return made;
  }

  static PlanInputs Inputs() {
    return {.seq_lens = Ints({6, 0, 8}), .block_table = Ints({7, 2, -5, -5, 5, 9}).view({3, 2})};
  }

  AttentionParams Layer() const {
    return {
        .num_q_heads = 2, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16, .window_left = 5};
  }

  KvLayer Kv() const {
    const auto view = [](const at::Tensor& tensor) {
      return KvView{.data = tensor.data_ptr(),
                    .block_stride = tensor.stride(0),
                    .token_stride = tensor.stride(1),
                    .head_stride = tensor.stride(2),
                    .dim_chunk = 16};
    };
    return {.k = view(k_),
            .v = view(v_),
            .dtype = DType::kFloat32,
            .num_blocks = 12,
            .block_size = 4,
            .num_kv_heads = 2,
            .head_dim_qk = 16,
            .head_dim_v = 16};
  }

  absl::Status Run(PlannedAttention& attention) {
    return attention.Run(Layer(), q_, Kv(), {out_, &lse_});
  }

  at::Tensor k_, v_, q_, out_, lse_;
};

TEST_F(PlannedAttentionTest, MatchesPagedAttention) {
  const std::unique_ptr<PlannedAttention> attention = MakeSet();
  const std::vector<int32_t> starts = {0, 1, 2, 3}, lens = {6, 0, 8}, table = {7, 2, -5, -5, 5, 9};
  const PagedBatch batch = {.query_start_loc = starts.data(),
                            .seq_lens = lens.data(),
                            .block_table = table.data(),
                            .block_table_stride = 2,
                            .num_rows = 3,
                            .num_tokens = 3,
                            .max_query_len = 1,
                            .max_seq_len = 8,
                            .num_tables = 3,
                            .max_blocks = 2};
  at::Tensor out = at::full({8, 2, 16}, NAN);
  at::Tensor lse = at::full({8, 2}, NAN);
  ASSERT_TRUE(PagedAttention(Layer(), batch, {}, q_, Kv(), {out, &lse}).ok());
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(attention->Plan(Inputs()).ok());
    const absl::Status status = Run(*attention);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(at::equal(out_, out));
    EXPECT_TRUE(at::equal(lse_, lse));
  }
}

// A mask without set bits hides all keys; a mask with all bits set also shows the keys after a
// query.
TEST_F(PlannedAttentionTest, RunUsesTheCustomMasksOfItsPlan) {
  PlannedAttentionOptions options = Options();
  options.window = {};
  options.max_custom_mask_bytes = 8;
  absl::StatusOr<std::unique_ptr<PlannedAttention>> attention = PlannedAttention::Create(options);
  ASSERT_TRUE(attention.ok()) << attention.status();
  ASSERT_TRUE((*attention)->SetScheduleWorkspace(Bytes((*attention)->schedule_bytes())).ok());
  AttentionParams layer = Layer();
  layer.window_left.reset();
  const auto run = [&](std::optional<at::Tensor> mask, std::optional<at::Tensor> offset) {
    out_.fill_(NAN);
    PlanInputs inputs = Inputs();
    inputs.query_start_loc = Ints({0, 2, 2, 4});
    inputs.custom_mask = std::move(mask);
    inputs.custom_mask_offset = std::move(offset);
    absl::Status status = (*attention)->Plan(inputs);
    if (status.ok()) status = (*attention)->Run(layer, q_, Kv(), {out_, &lse_});
    EXPECT_TRUE(status.ok()) << status;
    return out_.narrow(0, 0, 4).clone();
  };
  const at::Tensor causal = run(std::nullopt, std::nullopt);
  // Row 0: 2 queries over 6 keys; row 2: 2 queries over 8 keys.
  const at::Tensor all = at::full({4}, 0xff, at::kByte);
  const at::Tensor first = run(all, at::tensor({0, -1, -1}, at::kLong));
  EXPECT_FALSE(at::allclose(first[0], causal[0])) << "it sees the key of the next query";
  EXPECT_TRUE(at::allclose(first.narrow(0, 1, 3), causal.narrow(0, 1, 3)));
  const at::Tensor none = run(at::zeros({4}, at::kByte), at::tensor({0, -1, 2}, at::kLong));
  EXPECT_TRUE(at::equal(none, at::zeros_like(none)));
  EXPECT_TRUE(at::equal(run(std::nullopt, std::nullopt), causal)) << "masks of the plan before";
}

TEST_F(PlannedAttentionTest, RequiresWorkspacesThenPlanThenRun) {
  const std::unique_ptr<PlannedAttention> attention = Make();
  EXPECT_EQ(attention->partial_bytes(), 0);
  EXPECT_THAT(std::string(attention->Plan(Inputs()).message()),
              HasSubstr("SetScheduleWorkspace() must be called before Plan()"));
  ASSERT_TRUE(attention->SetScheduleWorkspace(Bytes(attention->schedule_bytes())).ok());
  EXPECT_EQ(Run(*attention), absl::FailedPreconditionError(
                                 "Plan() must be called before Run(): expected a plan, got none"));
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  EXPECT_TRUE(Run(*attention).ok());
}

TEST_F(PlannedAttentionTest, NewWorkspaceInvalidatesThePlan) {
  const std::unique_ptr<PlannedAttention> attention = MakeSet();
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  ASSERT_TRUE(attention->SetScheduleWorkspace(Bytes(attention->schedule_bytes() + 100)).ok());
  EXPECT_EQ(Run(*attention).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  EXPECT_TRUE(Run(*attention).ok());
  ASSERT_TRUE(attention->Reset().ok());
  EXPECT_EQ(attention->Plan(Inputs()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PlannedAttentionTest, RejectsWorkspacesOfWrongSizeOrType) {
  const std::unique_ptr<PlannedAttention> attention = Make();
  const int64_t bytes = attention->schedule_bytes();
  EXPECT_THAT(std::string(attention->SetScheduleWorkspace(Bytes(bytes - 1)).message()),
              HasSubstr("expected [>= " + std::to_string(bytes) + "], got [" +
                        std::to_string(bytes - 1) + "]"));
  EXPECT_THAT(std::string(attention->SetScheduleWorkspace(at::empty({bytes})).message()),
              HasSubstr("schedule_workspace must be"));
  EXPECT_THAT(
      std::string(
          attention->SetScheduleWorkspace(Bytes(2 * bytes).slice(0, 0, 2 * bytes, 2)).message()),
      HasSubstr("stride 1"));
}

// A recorded call, the CPU's form of a graph, holds its pin.
TEST_F(PlannedAttentionTest, RejectsReplacingWorkspacesWhileAGraphExists) {
  const std::unique_ptr<PlannedAttention> attention = MakeSet();
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  std::function<absl::Status()> graph = [&, pin = attention->pins().Take()] {
    return Run(*attention);
  };
  EXPECT_EQ(
      attention->SetScheduleWorkspace(Bytes(attention->schedule_bytes())),
      absl::FailedPreconditionError(
          "schedule_workspace must stay while captured graphs use it: expected 0 graphs, got 1"));
  EXPECT_EQ(attention->SetPartialWorkspace(Bytes(0)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(attention->Reset().code(), absl::StatusCode::kFailedPrecondition);
  // These rejected calls have no side effects: the plan is still valid.
  EXPECT_TRUE(graph().ok());
  graph = nullptr;
  EXPECT_TRUE(attention->Reset().ok());
}

TEST_F(PlannedAttentionTest, RejectedPlanInvalidatesTheEarlierPlan) {
  const std::unique_ptr<PlannedAttention> attention = MakeSet();
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  const PlanInputs broken = {
      .block_indptr = Ints({0, 2}), .block_indices = Ints({1, 2}), .last_block_len = Ints({7})};
  EXPECT_EQ(attention->Plan(broken).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Run(*attention).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PlannedAttentionTest, RejectsWiderWindowsAndOtherBlockSizesThanPlanned) {
  const std::unique_ptr<PlannedAttention> attention = MakeSet();
  ASSERT_TRUE(attention->Plan(Inputs()).ok());
  AttentionParams layer = Layer();
  layer.window_left = 9;
  EXPECT_TRUE(attention->Run(layer, q_, Kv(), {out_}).ok());
  layer.window_left = 10;
  EXPECT_EQ(attention->Run(layer, q_, Kv(), {out_}),
            absl::InvalidArgumentError(
                "window_left must not exceed the planned window: expected at most 9, got 10"));
  layer.window_left = std::nullopt;
  EXPECT_THAT(std::string(attention->Run(layer, q_, Kv(), {out_}).message()),
              HasSubstr("got none"));
  KvLayer kv = Kv();
  kv.block_size = 2;
  EXPECT_THAT(std::string(attention->Run(Layer(), q_, kv, {out_}).message()),
              HasSubstr("block_size"));
}

TEST_F(PlannedAttentionTest, RejectsInvalidOptionsByName) {
  PlannedAttentionOptions options = Options();
  options.work.num_q_heads = 3;
  EXPECT_THAT(std::string(PlannedAttention::Create(options).status().message()),
              HasSubstr("expected a multiple of num_kv_heads"));
  options = Options();
  options.block_size = 0;
  EXPECT_THAT(std::string(PlannedAttention::Create(options).status().message()),
              HasSubstr("block_size of 1 or more"));
  options = Options();
  options.device = at::kMPS;
  EXPECT_THAT(std::string(PlannedAttention::Create(options).status().message()),
              HasSubstr("expected the CPU or a CUDA device, got mps"));
}

}  // namespace
}  // namespace reprise
