#include "reprise/attention/head_dims.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {
namespace {

constexpr AttentionDevice kDevices[] = {AttentionDevice::kCpu, AttentionDevice::kCuda};
constexpr DType kQTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3,
                             DType::kFp8E5M2};

// Head dims listed by vLLM's PagedAttention and its FlashInfer backend, and DeepSeek's shapes.
TEST(HeadDimsTest, SupportsHeadDimsOfOtherSystems) {
  for (const AttentionDevice device : kDevices) {
    for (const DType q_dtype : kQTypes) {
      for (const int size : {32, 64, 80, 96, 112, 120, 128, 192, 256}) {
        EXPECT_TRUE(SupportsHeadDims(device, q_dtype, {size, size})) << q_dtype << " " << size;
      }
      EXPECT_TRUE(SupportsHeadDims(device, q_dtype, {192, 128}));
      EXPECT_TRUE(SupportsHeadDims(device, q_dtype, {576, 512, /*v_in_k=*/true}));
    }
  }
}

TEST(HeadDimsTest, RejectsImpossibleDimsAndDtypes) {
  for (const AttentionDevice device : kDevices) {
    EXPECT_FALSE(SupportsHeadDims(device, DType::kFloat32, {0, 64}));
    EXPECT_FALSE(SupportsHeadDims(device, DType::kFloat32, {64, 0}));
    EXPECT_FALSE(SupportsHeadDims(device, DType::kFloat32, {64, 65, /*v_in_k=*/true}));
    EXPECT_TRUE(SupportsHeadDims(device, DType::kFloat32, {64, 65}));
    EXPECT_FALSE(SupportsHeadDims(device, DType::kFloat64, {64, 64}));
    EXPECT_EQ(SupportedHeadDims(device, DType::kFloat64), "no head dims");
  }
}

TEST(HeadDimsTest, CpuSupportsAnySize) {
  EXPECT_TRUE(SupportsHeadDims(AttentionDevice::kCpu, DType::kBFloat16, {5000, 7000}));
  EXPECT_EQ(SupportedHeadDims(AttentionDevice::kCpu, DType::kBFloat16), "any head dims");
}

// PlanTileSchedule() accepts the same head dims, and its error contains SupportedHeadDims().
TEST(HeadDimsTest, CudaLimitsMatchPlanTileSchedule) {
  for (const DType q_dtype : kQTypes) {
    const auto plan = [&](int head_dim_qk, int head_dim_v) {
      return PlanTileSchedule({.dtype = q_dtype,
                               .num_q_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim_qk = head_dim_qk,
                               .head_dim_v = head_dim_v,
                               .max_rows = 1,
                               .max_tokens = 1,
                               .max_query_len = 1,
                               .max_seq_len = 1})
          .status();
    };
    int num_refused = 0;
    for (int qk = 16; qk <= 640; qk += 16) {
      for (int v = 16; v <= qk; v += 16) {
        const bool is_supported =
            SupportsHeadDims(AttentionDevice::kCuda, q_dtype, {qk, v, /*v_in_k=*/true});
        ASSERT_EQ(plan(qk, v).ok(), is_supported) << q_dtype << " " << qk << " " << v;
        num_refused += !is_supported;
      }
    }
    EXPECT_GT(num_refused, 0);
    for (const HeadDims& largest : LargestHeadDims(AttentionDevice::kCuda, q_dtype)) {
      EXPECT_TRUE(SupportsHeadDims(AttentionDevice::kCuda, q_dtype, largest));
      EXPECT_EQ(SupportsHeadDims(AttentionDevice::kCuda, q_dtype, {largest.qk, largest.v}),
                !largest.v_in_k);
    }
    EXPECT_THAT(std::string(plan(1000, 1000).message()),
                testing::HasSubstr(SupportedHeadDims(AttentionDevice::kCuda, q_dtype)));
  }
}

TEST(HeadDimsTest, DescribesTheLimitsInWords) {
  EXPECT_EQ(SupportedHeadDims(AttentionDevice::kCuda, DType::kFp8E4M3),
            "head dims to 512, or to 576 and 512 where V is the first columns of K");
}

}  // namespace
}  // namespace reprise
