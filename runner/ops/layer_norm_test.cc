#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

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

class LayerNormTest : public DeviceTest {};

// Computes the formula; each operation has the precision of its operands.
at::Tensor InPrecision(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       at::ScalarType precision) {
  const at::Tensor wide = x.to(precision);
  const at::Tensor centred = wide - wide.mean(-1, /*keepdim=*/true);
  const at::Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
  return centred * at::rsqrt(variance + kEps) * weight.to(precision) + bias.to(precision);
}

::testing::AssertionResult IsNorm(const at::Tensor& out, const at::Tensor& x,
                                  const at::Tensor& weight, const at::Tensor& bias) {
  return IsAsGoodAs(out, InPrecision(x, weight, bias, at::kFloat).to(x.scalar_type()),
                    InPrecision(x, weight, bias, at::kDouble));
}

TEST_F(LayerNormTest, AgreesWithFloat64ForAnySizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : kTypes) {
    for (int64_t size : {1, 7, 64, 100, 768, 1024, 20000}) {
      for (int64_t num_rows : {1, 3, 300}) {
        if (num_rows * size > 1000000) continue;
        const int64_t gap = random() % 2 == 0 ? 0 : 8;  // a gap of 8 keeps the alignment
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << num_rows << " x " << size << " + " << gap);
        const at::Tensor x = RandomNormal(random, {num_rows, size}, dtype);
        const at::Tensor weight = RandomNormal(random, {size}, dtype);
        const at::Tensor bias = RandomNormal(random, {size}, dtype);
        const at::Tensor out = NanRows({num_rows, size}, gap / 8 * 7, dtype, device());
        ASSERT_TRUE(LayerNorm(WithGaps(x.to(device()), gap), weight.to(device()), bias.to(device()),
                              kEps, out)
                        .ok());
        EXPECT_TRUE(IsNorm(out, x, weight, bias));
      }
    }
  }
}

TEST_F(LayerNormTest, NormalisesTheRoundedSumAndKeepsTheTerms) {
  std::mt19937 random(2);
  for (at::ScalarType dtype : kTypes) {
    for (int64_t size : {5, 1024}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << size);
      const at::Tensor delta = RandomNormal(random, {17, size}, dtype);
      const at::Tensor residual = RandomNormal(random, {17, size}, dtype);
      const at::Tensor weight = RandomNormal(random, {size}, dtype);
      const at::Tensor bias = RandomNormal(random, {size}, dtype);
      const at::Tensor d = delta.to(device());
      const at::Tensor r = WithGaps(residual.to(device()), 8);
      const at::Tensor out = NanRows({17, size}, 0, dtype, device());
      ASSERT_TRUE(AddLayerNorm(d, r, weight.to(device()), bias.to(device()), kEps, out).ok());
      EXPECT_TRUE(IsNorm(out, delta + residual, weight, bias));
      EXPECT_TRUE(Equals(d, delta));
      EXPECT_TRUE(Equals(r, residual));
    }
  }
}

TEST_F(LayerNormTest, WritesOverEitherOfItsInputs) {
  std::mt19937 random(3);
  const at::Tensor a = RandomNormal(random, {3, 1000}, at::kBFloat16).to(device());
  const at::Tensor b = RandomNormal(random, {3, 1000}, at::kBFloat16).to(device());
  const at::Tensor weight = RandomNormal(random, {1000}, at::kBFloat16).to(device());
  const at::Tensor bias = RandomNormal(random, {1000}, at::kBFloat16).to(device());
  const at::Tensor apart = at::empty_like(a);
  ASSERT_TRUE(AddLayerNorm(a, b, weight, bias, kEps, apart).ok());
  const at::Tensor first = a.clone();
  ASSERT_TRUE(AddLayerNorm(first, b, weight, bias, kEps, first).ok());
  EXPECT_TRUE(Equals(first, apart));
  const at::Tensor second = b.clone();
  ASSERT_TRUE(AddLayerNorm(a, second, weight, bias, kEps, second).ok());
  EXPECT_TRUE(Equals(second, apart));
  ASSERT_TRUE(LayerNorm(a, weight, bias, kEps, apart).ok());
  const at::Tensor in_place = a.clone();
  ASSERT_TRUE(LayerNorm(in_place, weight, bias, kEps, in_place).ok());
  EXPECT_TRUE(Equals(in_place, apart));
}

TEST_F(LayerNormTest, LargeMeanCausesNoCancellation) {
  std::mt19937 random(4);
  const at::Tensor x = RandomNormal(random, {5, 768}, at::kFloat) + 1000;
  const at::Tensor weight = at::ones({768});
  const at::Tensor bias = at::zeros({768});
  const at::Tensor out = NanRows({5, 768}, 0, at::kFloat, device());
  ASSERT_TRUE(LayerNorm(x.to(device()), weight.to(device()), bias.to(device()), kEps, out).ok());
  // x is exact to 3e-5; one pass over squares would leave errors near 0.1.
  const at::Tensor error = out.cpu().to(at::kDouble) - InPrecision(x, weight, bias, at::kDouble);
  EXPECT_LT(error.abs().max().item<double>(), 2e-4);
}

TEST_F(LayerNormTest, ARowWithoutVarianceGivesTheBias) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::empty({2, 100}, options).fill_(3);
  const at::Tensor bias = at::empty({100}, options).fill_(-7);
  const at::Tensor out = at::empty_like(x);
  ASSERT_TRUE(LayerNorm(x, at::ones({100}, options), bias, kEps, out).ok());
  EXPECT_EQ((out + 7).abs().max().item<float>(), 0);
}

TEST_F(LayerNormTest, ARowDoesNotDependOnTheBatch) {
  std::mt19937 random(5);
  const at::Tensor x = RandomNormal(random, {33, 1024}, at::kBFloat16).to(device());
  const at::Tensor weight = RandomNormal(random, {1024}, at::kBFloat16).to(device());
  const at::Tensor bias = RandomNormal(random, {1024}, at::kBFloat16).to(device());
  const at::Tensor together = at::empty_like(x);
  ASSERT_TRUE(LayerNorm(x, weight, bias, kEps, together).ok());
  const at::Tensor alone = at::empty_like(x);
  for (int64_t row : {0, 17, 32}) {
    ASSERT_TRUE(LayerNorm(x.narrow(0, row, 1), weight, bias, kEps, alone.narrow(0, row, 1)).ok());
    EXPECT_TRUE(Equals(alone.select(0, row), together.select(0, row)));
  }
}

TEST_F(LayerNormTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::zeros({2, 8}, options);
  const at::Tensor vector = at::zeros({8}, options);
  EXPECT_EQ(LayerNorm(x, at::zeros({7}, options), vector, kEps, x),
            absl::InvalidArgumentError("weight must be [size] float32: expected [8], got [7]"));
  EXPECT_EQ(LayerNorm(x, vector, at::zeros({9}, options), kEps, x),
            absl::InvalidArgumentError("bias must be [size] float32: expected [8], got [9]"));
  EXPECT_EQ(LayerNorm(x, vector, vector, kEps, at::zeros({3, 8}, options)),
            absl::InvalidArgumentError(
                "out must be [num_rows, size] float32: expected [2, 8], got [3, 8]"));
  EXPECT_EQ(AddLayerNorm(x, at::zeros({2, 8}, options.dtype(at::kHalf)), vector, vector, kEps, x),
            absl::InvalidArgumentError(
                "residual must be [num_rows, size] float32: expected float32, got float16"));
  const at::Tensor doubles = at::zeros({2, 8}, options.dtype(at::kDouble));
  EXPECT_EQ(AddLayerNorm(doubles, doubles, vector, vector, kEps, x),
            absl::InvalidArgumentError("delta has the wrong dtype: expected float32 or float16 or "
                                       "bfloat16, got float64"));
  EXPECT_FALSE(LayerNorm(at::zeros({8, 2}, options).t(), vector, vector, kEps, x).ok());
  const at::Tensor none = at::zeros({0, 8}, options);
  EXPECT_TRUE(LayerNorm(none, vector, vector, kEps, none).ok());
}

}  // namespace
}  // namespace reprise
