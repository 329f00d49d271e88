// GEMMs with 8-bit weights, on the CPU and on the GPU.

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/fp8/quantise_weight.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/test_device.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr at::ScalarType kFp8 = at::ScalarType::Float8_e4m3fn;

class ScaledLinearTest : public DeviceTest {
 protected:
  static std::unique_ptr<LinearContext> Context(bool deterministic = false) {
    auto context = MakeLinearContext(device(), {.deterministic = deterministic});
    EXPECT_TRUE(context.ok()) << context.status();
    return *std::move(context);
  }

  static at::TensorOptions Options(at::ScalarType dtype) {
    return at::TensorOptions(device()).dtype(dtype);
  }

  static Linear Quantised(const at::Tensor& weight, ScaledBy scaled_by,
                          std::optional<at::Tensor> bias = std::nullopt) {
    const auto small = QuantiseWeight(weight, scaled_by);
    EXPECT_TRUE(small.ok()) << small.status();
    auto linear = Linear::CreateScaled(small->values, small->scales, std::move(bias));
    EXPECT_TRUE(linear.ok()) << linear.status();
    return *std::move(linear);
  }

  // Returns one unit in the last place of `dtype`, relative.
  static double Rounding(at::ScalarType dtype) {
    return dtype == at::kFloat ? 1.0 / (1 << 23) : dtype == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
  }
};

TEST_F(ScaledLinearTest, MatchesTheDequantisedWeightInFloat64) {
  const std::unique_ptr<LinearContext> context = Context();
  // Shapes that the 8-bit kernels support, and shapes that none of them supports: odd sizes, and a
  // partial last group.
  const bool is_gpu = device().is_cuda();
  const std::vector<std::vector<int64_t>> shapes = {
      {1024, 48}, {2048, is_gpu ? 16 * 150 : 160}, {136, 40}, {1000, 33}};
  const std::vector<int64_t> rows =
      is_gpu ? std::vector<int64_t>{1, 8, 9, 17, 33, 70} : std::vector<int64_t>{1, 9};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const std::vector<int64_t>& shape : shapes) {
      for (const ScaledBy scaled_by : {ScaledBy::kRow, ScaledBy::kBlock}) {
        for (const bool has_bias : {false, true}) {
          const at::Tensor weight = at::randn({shape[1], shape[0]}, Options(at::kFloat)) * 0.05;
          std::optional<at::Tensor> bias;
          if (has_bias) bias = at::randn({shape[1]}, Options(dtype));
          const Linear linear = Quantised(weight, scaled_by, bias);
          const at::Tensor exact = linear.Dequantised(at::kDouble);
          for (const int64_t num_rows : rows) {
            SCOPED_TRACE(testing::Message() << dtype << " " << num_rows << " x " << shape[0]
                                            << " -> " << shape[1] << (has_bias ? " + bias" : "")
                                            << (scaled_by == ScaledBy::kRow ? " rows" : " blocks"));
            const at::Tensor x = at::randn({num_rows, shape[0]}, Options(dtype));
            // Memory beyond the result must not change.
            const at::Tensor all =
                at::full({num_rows + 1, shape[1] + 8}, std::numeric_limits<double>::infinity(),
                         Options(dtype));
            const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, shape[1]);
            const absl::Status status = linear.Apply(*context, x, out);
            ASSERT_TRUE(status.ok()) << status;
            const at::Tensor wide = x.to(at::kDouble);
            std::optional<at::Tensor> wide_bias;
            if (has_bias) wide_bias = bias->to(at::kDouble);
            const at::Tensor sums = at::linear(wide, exact, wide_bias);
            // Weights may be rounded to x's dtype, and the result is rounded. Rounding errors are
            // independent of each other, so their total grows with the root of the sum of squares.
            const at::Tensor squares = at::linear(wide.square(), exact.square());
            const at::Tensor allowed =
                sums.abs() * Rounding(dtype) + squares.sqrt() * (Rounding(dtype) * 4) + 5e-5;
            EXPECT_LT(((out.to(at::kDouble) - sums).abs() - allowed).max().item<double>(), 0);
            EXPECT_TRUE(all.narrow(1, shape[1], 8).isinf().all().item<bool>());
            EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
          }
        }
      }
    }
  }
}

TEST_F(ScaledLinearTest, GatedGemmMatchesGemmThenGateBitwise) {
  const std::unique_ptr<LinearContext> context = Context();
  for (const ScaledBy scaled_by : {ScaledBy::kRow, ScaledBy::kBlock}) {
    const Linear linear =
        Quantised(at::randn({2 * 48, 1024}, Options(at::kFloat)) * 0.05, scaled_by);
    for (const int64_t num_rows : {1, 20, 70}) {
      const at::Tensor x = at::randn({num_rows, 1024}, Options(at::kBFloat16));
      const at::Tensor gate_up = at::empty({num_rows, 2 * 48}, x.options());
      const at::Tensor expected = at::empty({num_rows, 48}, x.options());
      ASSERT_TRUE(linear.Apply(*context, x, gate_up).ok());
      ASSERT_TRUE(GateMul(Activation::kGeluTanh, gate_up, expected).ok());
      const at::Tensor scratch = at::empty_like(gate_up);
      const at::Tensor out = at::empty_like(expected);
      const absl::Status status =
          linear.ApplyGated(*context, Activation::kGeluTanh, x, scratch, out);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(at::equal(out, expected));
    }
  }
}

TEST_F(ScaledLinearTest, LogitsMayBeFloat32AndRowsMayBeStrided) {
  const std::unique_ptr<LinearContext> context = Context();
  const Linear linear =
      Quantised(at::randn({64, 1024}, Options(at::kFloat)) * 0.05, ScaledBy::kBlock);
  for (const int64_t num_rows : {3, 65}) {
    const at::Tensor x = at::randn({num_rows, 1040}, Options(at::kBFloat16)).narrow(1, 0, 1024);
    const at::Tensor out = at::empty({num_rows, 64}, Options(at::kFloat));
    ASSERT_TRUE(linear.Apply(*context, x, out).ok());
    const at::Tensor sums = at::linear(x.to(at::kDouble), linear.Dequantised(at::kDouble));
    // On a GPU, weights of GEMMs with few rows are not rounded; otherwise they are rounded to
    // bfloat16.
    EXPECT_LT((out.to(at::kDouble) - sums).abs().max().item<double>(), 0.03);
  }
}

TEST_F(ScaledLinearTest, RowsDoNotDependOnTheBatchInDeterministicMode) {
  const std::unique_ptr<LinearContext> context = Context(/*deterministic=*/true);
  for (const int64_t in_features : {1024, 1000}) {
    const Linear linear =
        Quantised(at::randn({80, in_features}, Options(at::kFloat)) * 0.05, ScaledBy::kRow);
    const at::Tensor x = at::randn({130, in_features}, Options(at::kBFloat16));
    at::Tensor first;
    for (const int64_t num_rows : {1, 7, 16, 31, 64, 65, 130}) {
      const at::Tensor out = at::empty({num_rows, 80}, Options(at::kBFloat16));
      ASSERT_TRUE(linear.Apply(*context, x.narrow(0, 0, num_rows), out).ok());
      if (!first.defined()) first = out[0].clone();
      EXPECT_TRUE(at::equal(out[0], first)) << in_features << ", rows " << num_rows;
    }
  }
}

TEST_F(ScaledLinearTest, ScalesApplyToTheirRowsAndGroups) {
  const std::unique_ptr<LinearContext> context = Context();
  // All values are 1, so an output depends only on x and on the scales of its row.
  const at::Tensor values = at::ones({32, 2048}, Options(at::kFloat)).to(kFp8);
  at::Tensor scales = at::zeros({32, 16}, at::kFloat);
  for (int row = 0; row < 32; ++row) {
    // Numbers that bfloat16 represents exactly.
    for (int group = 0; group < 16; ++group) {
      scales[row][group] = (row + 32 * (group % 8)) * (group < 8 ? 1 : 256);
    }
  }
  const auto linear = Linear::CreateScaled(values, scales.to(device()), std::nullopt);
  ASSERT_TRUE(linear.ok()) << linear.status();
  // Each row of x selects one group.
  const at::Tensor x = at::zeros({16, 2048}, Options(at::kBFloat16));
  for (int group = 0; group < 16; ++group) x[group].narrow(0, group * 128, 128).fill_(1.0 / 128);
  const at::Tensor out = at::empty({16, 32}, Options(at::kFloat));
  ASSERT_TRUE(linear->Apply(*context, x, out).ok());
  // The tile kernel replaces a scale of 0 with 2^-90.
  EXPECT_TRUE(at::allclose(out.cpu(), scales.t(), /*rtol=*/0, /*atol=*/1e-20));
}

TEST_F(ScaledLinearTest, ALargeWeightIsMultipliedInParts) {
  if (device().is_cpu()) GTEST_SKIP() << "too slow on a CPU";
  const std::unique_ptr<LinearContext> context = Context();
  // 8000 rows of 16 KB in bfloat16: several parts, and the last part is not full.
  const Linear linear =
      Quantised(at::randn({8000, 8192}, Options(at::kFloat)) * 0.02, ScaledBy::kBlock);
  const at::Tensor x = at::randn({100, 8192}, Options(at::kBFloat16));
  const at::Tensor out = at::empty({100, 8000}, Options(at::kBFloat16));
  for (int run = 0; run < 3; ++run) {
    ASSERT_TRUE(linear.Apply(*context, x, out).ok());
    const at::Tensor sums = at::linear(x.to(at::kDouble), linear.Dequantised(at::kDouble));
    EXPECT_LT((out.to(at::kDouble) - sums).abs().max().item<double>(), 0.1);
  }
}

TEST_F(ScaledLinearTest, QuantisationErrorStaysWithinFp8Precision) {
  const at::Tensor weight = at::randn({200, 300}, Options(at::kFloat));
  weight[7].zero_();
  for (const ScaledBy scaled_by : {ScaledBy::kRow, ScaledBy::kBlock}) {
    const auto small = QuantiseWeight(weight, scaled_by);
    ASSERT_TRUE(small.ok());
    EXPECT_EQ(small->values.scalar_type(), kFp8);
    EXPECT_EQ(small->scales.sizes(), (at::IntArrayRef{200, scaled_by == ScaledBy::kRow ? 1 : 3}));
    const Linear linear = *Linear::CreateScaled(small->values, small->scales, std::nullopt);
    const at::Tensor back = linear.Dequantised(at::kDouble);
    // A value has a mantissa of 3 bits; the smallest values are multiples of scale / 512.
    const at::Tensor allowed =
        weight.to(at::kDouble).abs() / 16 + small->scales.max().item<double>() / 1000;
    EXPECT_LT(((back - weight).abs() - allowed).max().item<double>(), 0);
    EXPECT_TRUE(back[7].eq(0).all().item<bool>());
    // The largest value of a row, or of a block, is represented exactly.
    EXPECT_NEAR(back.abs().max().item<double>(), weight.abs().max().item<double>(), 1e-5);
    if (scaled_by == ScaledBy::kBlock) {
      EXPECT_TRUE(at::equal(small->scales[0], small->scales[127]));
      EXPECT_FALSE(at::equal(small->scales[127], small->scales[128]));
    }
  }
}

TEST_F(ScaledLinearTest, RejectsUnsupportedArguments) {
  const at::Tensor values = at::ones({32, 300}, Options(at::kFloat)).to(kFp8);
  const at::Tensor scales = at::ones({32, 3}, Options(at::kFloat));
  const auto message = [](const absl::StatusOr<Linear>& linear) {
    EXPECT_EQ(linear.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(linear.status().message());
  };
  EXPECT_THAT(message(Linear::CreateScaled(values.to(at::kFloat), scales, std::nullopt)),
              HasSubstr("weight"));
  EXPECT_THAT(message(Linear::CreateScaled(values, scales.narrow(1, 0, 2), std::nullopt)),
              HasSubstr("scales must have one column"));
  EXPECT_THAT(message(Linear::CreateScaled(values, scales.narrow(0, 0, 31), std::nullopt)),
              HasSubstr("scales"));
  EXPECT_THAT(message(Linear::CreateScaled(values, scales.to(at::kHalf), std::nullopt)),
              HasSubstr("scales"));
  EXPECT_THAT(message(Linear::CreateScaled(values, scales, at::ones({31}, Options(at::kBFloat16)))),
              HasSubstr("bias"));
  EXPECT_THAT(message(Linear::CreateScaled(values, scales, at::ones({32}, Options(at::kLong)))),
              HasSubstr("bias"));
  EXPECT_THAT(message(Linear::Create(values, std::nullopt)), HasSubstr("weight"));

  const std::unique_ptr<LinearContext> context = Context();
  const Linear linear =
      *Linear::CreateScaled(values, scales, at::ones({32}, Options(at::kBFloat16)));
  const at::Tensor x = at::ones({2, 300}, Options(at::kBFloat16));
  const at::Tensor out = at::empty({2, 32}, Options(at::kBFloat16));
  EXPECT_TRUE(linear.Apply(*context, x, out).ok());
  EXPECT_THAT(std::string(linear.Apply(*context, x.to(at::kHalf), out).message()), HasSubstr("x"));
  EXPECT_THAT(std::string(linear.Apply(*context, x, out.to(at::kFloat)).message()),
              HasSubstr("out"));
  EXPECT_THAT(std::string(linear.Apply(*context, x.narrow(1, 0, 299), out).message()),
              HasSubstr("x"));
  EXPECT_THAT(QuantiseWeight(values, ScaledBy::kRow).status().message(), HasSubstr("weight"));
}

}  // namespace
}  // namespace reprise
