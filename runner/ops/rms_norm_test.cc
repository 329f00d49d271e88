#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>

#include <cstdint>
#include <random>

#include "gtest/gtest.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

constexpr float kEps = 1e-5f;
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

class RmsNormTest : public DeviceTest {};

// Uses the precision of `x`, which is float64 for the reference.
at::Tensor Normalised(const at::Tensor& x, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
}

at::Tensor Reference(const at::Tensor& x, const at::Tensor& weight) {
  return Normalised(x.to(at::kDouble), kEps) * weight.to(at::kDouble);
}

// Computes Hugging Face's LlamaRMSNorm.
at::Tensor SameMaths(const at::Tensor& x, const at::Tensor& weight) {
  return weight * Normalised(x.to(at::kFloat), kEps).to(x.scalar_type());
}

TEST_F(RmsNormTest, AgreesWithFloat64ForAnySizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : kTypes) {
    for (int64_t size : {1, 7, 64, 100, 256, 2048, 4096, 5120, 20000}) {
      for (int64_t num_rows : {1, 3, 300}) {
        if (num_rows * size > 1000000) continue;
        const int64_t gap = random() % 2 == 0 ? 0 : 8;  // a gap of 8 keeps the alignment
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << num_rows << " x " << size << " + " << gap);
        const at::Tensor x = RandomNormal(random, {num_rows, size}, dtype);
        const at::Tensor weight = RandomNormal(random, {size}, dtype);
        const at::Tensor out = NanRows({num_rows, size}, gap / 8 * 7, dtype, device());
        ASSERT_TRUE(RmsNorm(WithGaps(x.to(device()), gap), weight.to(device()), kEps, out).ok());
        EXPECT_TRUE(IsAsGoodAs(out, SameMaths(x, weight), Reference(x, weight)));
      }
    }
  }
}

TEST_F(RmsNormTest, AddsTheResidualAndKeepsTheRoundedSum) {
  std::mt19937 random(2);
  for (at::ScalarType dtype : kTypes) {
    for (int64_t size : {5, 4096}) {
      const at::Tensor delta = RandomNormal(random, {17, size}, dtype);
      const at::Tensor residual = RandomNormal(random, {17, size}, dtype);
      const at::Tensor weight = RandomNormal(random, {size}, dtype);
      const at::Tensor sum = WithGaps(residual.to(device()), 8);
      const at::Tensor out = NanRows({17, size}, 0, dtype, device());
      ASSERT_TRUE(AddRmsNorm(delta.to(device()), sum, weight.to(device()), kEps, out).ok());
      EXPECT_TRUE(Equals(sum, residual + delta));
      EXPECT_TRUE(IsAsGoodAs(out, SameMaths(residual + delta, weight),
                             Reference(residual + delta, weight)));
    }
  }
}

TEST_F(RmsNormTest, RoundsBeforeTheWeightAsInLlama) {
  std::mt19937 random(3);
  const at::Tensor x = RandomNormal(random, {64, 512}, at::kBFloat16);
  const at::Tensor weight = RandomNormal(random, {512}, at::kBFloat16);
  const at::Tensor out = at::empty({64, 512}, at::TensorOptions(device()).dtype(at::kBFloat16));
  ASSERT_TRUE(RmsNorm(x.to(device()), weight.to(device()), kEps, out).ok());
  // Another order of the sum may, rarely, move a value to another rounding interval.
  const int64_t num_equal = out.cpu().eq(SameMaths(x, weight)).sum().item<int64_t>();
  EXPECT_GT(num_equal, 64 * 512 * 99 / 100);
}

TEST_F(RmsNormTest, OnePlusWeightIsRoundedOnceAsInGemma) {
  std::mt19937 random(6);
  for (at::ScalarType dtype : kTypes) {
    for (int64_t size : {5, 2304}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << size);
      const at::Tensor delta = RandomNormal(random, {17, size}, dtype);
      const at::Tensor residual = RandomNormal(random, {17, size}, dtype);
      const at::Tensor weight = RandomNormal(random, {size}, dtype);
      const auto gemma = [&](const at::Tensor& x, at::ScalarType precision) {
        return (Normalised(x.to(precision), kEps) * (weight.to(precision) + 1)).to(dtype);
      };
      const at::Tensor out = NanRows({17, size}, 0, dtype, device());
      ASSERT_TRUE(
          RmsNorm(delta.to(device()), weight.to(device()), kEps, out, NormWeight::kOnePlus).ok());
      EXPECT_TRUE(IsAsGoodAs(out, gemma(delta, at::kFloat), gemma(delta, at::kDouble)));
      const at::Tensor sum = residual.clone().to(device());
      ASSERT_TRUE(
          AddRmsNorm(delta.to(device()), sum, weight.to(device()), kEps, out, NormWeight::kOnePlus)
              .ok());
      EXPECT_TRUE(Equals(sum, residual + delta));
      EXPECT_TRUE(IsAsGoodAs(out, gemma(residual + delta, at::kFloat),
                             gemma(residual + delta, at::kDouble)));
    }
  }
}

TEST_F(RmsNormTest, WorksInPlace) {
  std::mt19937 random(4);
  const at::Tensor x = RandomNormal(random, {3, 1000}, at::kFloat);
  const at::Tensor weight = RandomNormal(random, {1000}, at::kFloat);
  const at::Tensor in_place = x.clone().to(device());
  const at::Tensor apart = at::empty_like(in_place);
  ASSERT_TRUE(RmsNorm(x.to(device()), weight.to(device()), kEps, apart).ok());
  ASSERT_TRUE(RmsNorm(in_place, weight.to(device()), kEps, in_place).ok());
  EXPECT_TRUE(Equals(in_place, apart));
}

TEST_F(RmsNormTest, ARowDoesNotDependOnTheBatch) {
  std::mt19937 random(5);
  const at::Tensor x = RandomNormal(random, {33, 4096}, at::kBFloat16).to(device());
  const at::Tensor weight = RandomNormal(random, {4096}, at::kBFloat16).to(device());
  const at::Tensor together = at::empty_like(x);
  ASSERT_TRUE(RmsNorm(x, weight, kEps, together).ok());
  const at::Tensor alone = at::empty_like(x);
  for (int64_t row : {0, 17, 32}) {
    ASSERT_TRUE(RmsNorm(x.narrow(0, row, 1), weight, kEps, alone.narrow(0, row, 1)).ok());
    EXPECT_TRUE(Equals(alone.select(0, row), together.select(0, row)));
  }
}

TEST_F(RmsNormTest, ZerosAndHugeValuesStayFinite) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::empty({2, 128}, options);
  x.select(0, 0).fill_(0);
  x.select(0, 1).fill_(1e18f);  // its square is near the end of float32: 1e36 * 128 < 3.4e38
  const at::Tensor weight = at::empty({128}, options).fill_(2);
  const at::Tensor out = at::empty_like(x);
  ASSERT_TRUE(RmsNorm(x, weight, kEps, out).ok());
  EXPECT_EQ(out.select(0, 0).abs().max().item<float>(), 0);
  EXPECT_NEAR(out.select(0, 1).max().item<float>(), 2, 1e-6);
}

TEST_F(RmsNormTest, AcceptsZeroRows) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor none = at::empty({0, 8}, options);
  EXPECT_TRUE(RmsNorm(none, at::empty({8}, options), kEps, none).ok());
}

TEST_F(RmsNormTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::empty({2, 8}, options);
  const at::Tensor weight = at::empty({8}, options);
  EXPECT_EQ(RmsNorm(x, at::empty({7}, options), kEps, x),
            absl::InvalidArgumentError("weight must be [size] float32: expected [8], got [7]"));
  EXPECT_EQ(RmsNorm(x, weight, kEps, at::empty({3, 8}, options)),
            absl::InvalidArgumentError(
                "out must be [num_rows, size] float32: expected [2, 8], got [3, 8]"));
  EXPECT_EQ(AddRmsNorm(x, at::empty({2, 8}, options.dtype(at::kHalf)), weight, kEps, x),
            absl::InvalidArgumentError(
                "residual must be [num_rows, size] float32: expected float32, got float16"));
  const at::Tensor doubles = at::empty({2, 8}, options.dtype(at::kDouble));
  EXPECT_EQ(AddRmsNorm(doubles, doubles, weight, kEps, x),
            absl::InvalidArgumentError("delta has the wrong dtype: expected float32 or float16 or "
                                       "bfloat16, got float64"));
  EXPECT_FALSE(RmsNorm(at::empty({8, 2}, options).t(), weight, kEps, x).ok());
}

}  // namespace
}  // namespace reprise
