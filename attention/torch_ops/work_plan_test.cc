#include "reprise/attention/torch_ops/work_plan.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise {
namespace {

using ::testing::HasSubstr;

TileScheduleOptions Options() {
  return {.dtype = DType::kBFloat16,
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim_qk = 64,
          .head_dim_v = 64,
          .max_rows = 5,
          .max_tokens = 9,
          .max_query_len = 4,
          .max_seq_len = 333,
          .device = {.num_sms = 78},
          .mode = TileScheduleMode::kDeterministic,
          .max_splits = 3};
}

TEST(WorkPlanTest, PlanContainsTheWorkspaceSize) {
  const at::Tensor plan = *MakePlanTensor(Options());
  EXPECT_EQ(plan[0].item<int64_t>(), PlanTileSchedule(Options())->workspace_bytes);
}

TEST(WorkPlanTest, PlanTensorKeepsTheOptions) {
  const TileScheduleOptions read = *ReadPlanTensor(*MakePlanTensor(Options()));
  const TileScheduleOptions made = Options();
  EXPECT_EQ(read.dtype, made.dtype);
  EXPECT_EQ(read.max_splits, made.max_splits);
  EXPECT_EQ(read.num_q_heads, made.num_q_heads);
  EXPECT_EQ(read.num_kv_heads, made.num_kv_heads);
  EXPECT_EQ(read.head_dim_qk, made.head_dim_qk);
  EXPECT_EQ(read.head_dim_v, made.head_dim_v);
  EXPECT_EQ(read.max_rows, made.max_rows);
  EXPECT_EQ(read.max_tokens, made.max_tokens);
  EXPECT_EQ(read.max_query_len, made.max_query_len);
  EXPECT_EQ(read.max_seq_len, made.max_seq_len);
  EXPECT_EQ(read.device.num_sms, made.device.num_sms);
  EXPECT_EQ(read.mode, made.mode);
}

TEST(WorkPlanTest, AllocatedWorkspaceServesAMap) {
  const at::Tensor plan = *MakePlanTensor(Options());
  for (int i = 0; i < 8; ++i) {
    const at::Tensor workspace = *AllocateWorkspace(plan, at::kCPU);
    const TileSchedule schedule = *TileScheduleOver(plan, workspace, at::kCPU);
    EXPECT_EQ(schedule.main.max_rows, 5);
    EXPECT_NE(schedule.main.items, nullptr);
  }
}

TEST(WorkPlanTest, RejectsInvalidPlansAndWorkspaces) {
  const auto refusal = [](const at::Tensor& plan, const at::Tensor& workspace) {
    return std::string(TileScheduleOver(plan, workspace, at::kCPU).status().message());
  };
  const at::Tensor plan = *MakePlanTensor(Options());
  const at::Tensor workspace = *AllocateWorkspace(plan, at::kCPU);
  EXPECT_THAT(refusal(at::zeros({3}, at::kLong), workspace), HasSubstr("plan must be"));
  EXPECT_THAT(refusal(at::zeros({12}, at::kInt), workspace), HasSubstr("plan must be"));
  at::Tensor spoiled = plan.clone();
  spoiled[3] = -1;
  EXPECT_THAT(refusal(spoiled, workspace), HasSubstr("32-bit count at 3, got -1"));
  spoiled = plan.clone();
  spoiled[1] = 99;
  EXPECT_THAT(refusal(spoiled, workspace), HasSubstr("tile_schedule_plan"));
  EXPECT_THAT(refusal(plan, workspace.narrow(0, 0, workspace.size(0) - 1)),
              HasSubstr("workspace must be"));
  EXPECT_THAT(
      refusal(
          plan,
          at::empty({workspace.size(0) + 512}, at::kByte).narrow(0, 1, workspace.size(0) + 256)),
      HasSubstr("aligned"));
}

}  // namespace
}  // namespace reprise
