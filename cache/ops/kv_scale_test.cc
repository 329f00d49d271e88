#include "reprise/cache/ops/kv_scale.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float At(const Scale& scale, int row, int head) {
  return scale.data[row * scale.row_stride + head * scale.head_stride];
}

TEST(KvScaleTest, TensorsOfEveryShapeBecomeScales) {
  const at::Tensor scalar = at::full({}, 2.0f);
  EXPECT_EQ(At(*ScaleFromTensor("k_scale", scalar, 3), 7, 2), 2);
  const at::Tensor heads = at::tensor({1.0f, 2.0f, 3.0f});
  EXPECT_EQ(At(*ScaleFromTensor("k_scale", heads, 3), 7, 2), 3);
  const at::Tensor rows = at::tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}).view({2, 3});
  EXPECT_EQ(At(*ScaleFromTensor("k_scale", rows, 3), 1, 2), 6);
  EXPECT_EQ(At(*ScaleFromTensor("k_scale", rows.view({3, 2}).t(), 3), 1, 2), 6);
  // An expanded tensor has stride 0 in both dimensions, so a write may use it.
  const Scale expanded = *ScaleFromTensor("k_scale", scalar.expand({5, 3}), 3);
  EXPECT_EQ(expanded.row_stride, 0);
  EXPECT_EQ(At(expanded, 4, 2), 2);
  EXPECT_EQ(At(*ScaleFromTensor("k_scale", heads.expand({5, 3}), 3), 4, 1), 2);
}

TEST(KvScaleTest, RejectsTensorsOfOtherShapes) {
  const auto message = [](const at::Tensor& tensor) {
    absl::Status status = ScaleFromTensor("v_scale", tensor, 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(at::ones({4})), HasSubstr("v_scale must be [], [1], [num_kv_heads] or"));
  EXPECT_THAT(message(at::ones({2, 4})), HasSubstr("expected 3 heads, got [2, 4]"));
  EXPECT_THAT(message(at::ones({0, 3})), HasSubstr("got [0, 3]"));
  EXPECT_THAT(message(at::ones({1}, at::kHalf)), HasSubstr("v_scale has the wrong dtype"));
  EXPECT_THAT(message(at::Tensor()), HasSubstr("v_scale is missing"));
}

// Two heads of 2 dims, three tokens.
at::Tensor Values() {
  return at::tensor({1.0f, -2.0f, 3.0f, 0.5f,  //
                     -8.0f, 2.0f, 0.0f, 0.0f,  //
                     100.0f, kInf, kNan, 200.0f})
      .view({3, 2, 2});
}

TEST(KvScaleTest, ScaleIsTheLargestMagnitudeDividedByTheRange) {
  const at::Tensor slots = at::tensor({5, 0}, at::kLong);  // the third token is not written
  const at::Tensor per_head = at::full({2}, kNan), one = at::full({1}, kNan);
  ASSERT_TRUE(ComputeKvScales(Values(), slots, per_head, {}).ok());
  EXPECT_EQ(per_head[0].item<float>(), 8.0f / 448);
  EXPECT_EQ(per_head[1].item<float>(), 3.0f / 448);
  ASSERT_TRUE(ComputeKvScales(Values(), slots, one, {.cache_dtype = DType::kFp8E5M2}).ok());
  EXPECT_EQ(one[0].item<float>(), 8.0f / 57344);
  ASSERT_TRUE(ComputeKvScales(Values(), slots, one, {.range = 200.0f}).ok());
  EXPECT_EQ(one[0].item<float>(), 8.0f / 200);
}

TEST(KvScaleTest, IgnoresPaddingAndNonFiniteValues) {
  const at::Tensor scales = at::full({2}, kNan);
  ASSERT_TRUE(
      ComputeKvScales(Values(), at::tensor({-1, -1, 3}, at::kLong), scales, {.range = 1.0f}).ok());
  EXPECT_EQ(scales[0].item<float>(), 100);
  EXPECT_EQ(scales[1].item<float>(), 200);
  ASSERT_TRUE(ComputeKvScales(Values(), at::tensor({-1, -1, -1}, at::kLong), scales, {}).ok());
  EXPECT_EQ(scales[0].item<float>(), 1);  // no values
  ASSERT_TRUE(ComputeKvScales(Values(), at::tensor({-1, 4}, at::kLong), scales, {}).ok());
  EXPECT_EQ(scales[1].item<float>(), 1);  // only zeros
}

TEST(KvScaleTest, RejectsInvalidArguments) {
  const at::Tensor slots = at::tensor({5, 0}, at::kLong);
  const auto message = [&](const at::Tensor& values, const at::Tensor& scales,
                           const KvScaleOptions& options,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    absl::Status status = ComputeKvScales(values, slots, scales, options);
    EXPECT_EQ(status.code(), code);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Values(), at::zeros({3}), {}),
              HasSubstr("scales must be [1] or [num_kv_heads]: expected 2, got 3"));
  EXPECT_THAT(message(Values().slice(0, 0, 1), at::zeros({1}), {}), HasSubstr("values must be"));
  EXPECT_THAT(message(Values(), at::zeros({1}), {.range = 0.0f}), HasSubstr("range"));
  EXPECT_THAT(message(Values(), at::zeros({1}, at::kHalf), {}), HasSubstr("scales"));
  EXPECT_THAT(message(Values().to(at::kInt), at::zeros({1}), {}, absl::StatusCode::kUnimplemented),
              HasSubstr("expected float32, float16 or bfloat16, got int32"));
}

}  // namespace
}  // namespace reprise
