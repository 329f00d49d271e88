#include "reprise/runner/ops/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

class LinearTest : public DeviceTest {
 protected:
  static std::unique_ptr<LinearContext> Context(const LinearContextOptions& options = {}) {
    absl::StatusOr<std::unique_ptr<LinearContext>> context = MakeLinearContext(device(), options);
    EXPECT_TRUE(context.ok()) << context.status();
    return *std::move(context);
  }

  static Linear LinearOf(const at::Tensor& weight, std::optional<at::Tensor> bias) {
    if (bias.has_value()) bias = bias->to(device());
    absl::StatusOr<Linear> linear = Linear::Create(weight.to(device()), bias);
    EXPECT_TRUE(linear.ok()) << linear.status();
    return *std::move(linear);
  }
};

at::Tensor Product(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias) {
  return bias.has_value() ? at::addmm(*bias, x, weight.t()) : at::mm(x, weight.t());
}

at::Tensor Reference(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  return Product(x.to(at::kDouble), weight.to(at::kDouble),
                 bias.has_value() ? std::optional(bias->to(at::kDouble)) : std::nullopt);
}

// Sums of the absolute values of the terms. No partial sum is larger, in any order.
at::Tensor Magnitudes(const at::Tensor& x, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias) {
  return Reference(x.abs(), weight.abs(),
                   bias.has_value() ? std::optional(bias->abs()) : std::nullopt);
}

// Computes float32 sums in the worst order; for other dtypes, computes as LibTorch does.
at::Tensor SameMaths(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias) {
  if (x.scalar_type() != at::kFloat) return Product(x, weight, bias);
  const at::Tensor sums = ProductInOneChain(x, weight);
  return bias.has_value() ? sums + *bias : sums;
}

struct Features {
  int64_t in, out;
};
constexpr Features kFeatures[] = {{64, 64}, {256, 768}, {100, 40}, {2048, 512}, {8, 1}};

TEST_F(LinearTest, AgreesWithFloat64WithAndWithoutBias) {
  std::mt19937 random(1);
  const std::unique_ptr<LinearContext> context = Context();
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto [in, out_features] : kFeatures) {
      for (bool has_bias : {false, true}) {
        const at::Tensor weight = RandomNormal(random, {out_features, in}, dtype);
        std::optional<at::Tensor> bias;
        if (has_bias) bias = RandomNormal(random, {out_features}, dtype);
        const Linear linear = LinearOf(weight, bias);
        for (int64_t num_rows : {1, 2, 5, 16, 40}) {
          SCOPED_TRACE(testing::Message() << dtype << " " << num_rows << " x " << in << " -> "
                                          << out_features << (has_bias ? " + bias" : ""));
          const at::Tensor x = RandomNormal(random, {num_rows, in}, dtype);
          const at::Tensor out = NanRows({num_rows, out_features}, 0, dtype, device());
          const absl::Status status = linear.Apply(*context, x.to(device()), out);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(IsAsGoodAs(out, SameMaths(x, weight, bias), Reference(x, weight, bias),
                                 Magnitudes(x, weight, bias)));
          // The second run uses the algorithm that the first run chose.
          const at::Tensor again = NanRows({num_rows, out_features}, 0, dtype, device());
          ASSERT_TRUE(linear.Apply(*context, x.to(device()), again).ok());
          EXPECT_TRUE(Equals(again, out));
        }
      }
    }
  }
}

TEST_F(LinearTest, ReadsAndWritesStridedRows) {
  std::mt19937 random(2);
  const std::unique_ptr<LinearContext> context = Context();
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t num_rows : {1, 6}) {
      const at::Tensor weight = RandomNormal(random, {96, 64}, dtype);
      const at::Tensor x = RandomNormal(random, {num_rows, 64}, dtype);
      const at::Tensor wide =
          NanRows({num_rows, 96 + 32}, 0, dtype, device());  // out is its first 96 columns
      const at::Tensor out = wide.narrow(1, 0, 96);
      const Linear linear = *Linear::Create(WithGaps(weight.to(device()), 16), std::nullopt);
      ASSERT_TRUE(linear.Apply(*context, WithGaps(x.to(device()), 8), out).ok());
      EXPECT_TRUE(IsAsGoodAs(out, Product(x, weight, {}), Reference(x, weight, {})));
      const at::Tensor next = wide.narrow(1, 96, 32);
      EXPECT_TRUE(next.ne(next).all().item<bool>());  // still NaN
    }
  }
}

TEST_F(LinearTest, LogitsOfSixteenBitWeightsMayBeFloat32) {
  std::mt19937 random(3);
  const std::unique_ptr<LinearContext> context = Context();
  const at::Tensor weight = RandomNormal(random, {500, 128}, at::kBFloat16);
  const at::Tensor x = RandomNormal(random, {9, 128}, at::kBFloat16);
  const at::Tensor out = NanRows({9, 500}, 0, at::kFloat, device());
  ASSERT_TRUE(LinearOf(weight, std::nullopt).Apply(*context, x.to(device()), out).ok());
  EXPECT_TRUE(IsAsGoodAs(out, Product(x, weight, {}), Reference(x, weight, {})));
}

TEST_F(LinearTest, ServesTheShapesOfLlama8B) {
  if (device().is_cpu()) GTEST_SKIP() << "too slow on a CPU";
  std::mt19937 random(6);
  const std::unique_ptr<LinearContext> context = Context();
  for (const auto [in, out_features] :
       {Features{4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}}) {
    const at::Tensor weight =
        RandomNormal(random, {64, in}, at::kBFloat16).repeat({out_features / 64, 1}).to(device());
    const Linear linear = LinearOf(weight, std::nullopt);
    for (int64_t num_rows : {1, 8, 256}) {
      SCOPED_TRACE(testing::Message() << num_rows << " x " << in << " -> " << out_features);
      const at::Tensor x = RandomNormal(random, {num_rows, in}, at::kBFloat16).to(device());
      const at::Tensor out = NanRows({num_rows, out_features}, 0, at::kBFloat16, device());
      const absl::Status status = linear.Apply(*context, x, out);
      ASSERT_TRUE(status.ok()) << status;
      const at::Tensor reference = at::mm(x.to(at::kFloat), weight.to(at::kFloat).t());
      EXPECT_TRUE(IsAsGoodAs(out, at::mm(x, weight.t()), reference));
    }
  }
}

TEST_F(LinearTest, InDeterministicModeARowDoesNotDependOnTheBatch) {
  std::mt19937 random(4);
  const std::unique_ptr<LinearContext> context = Context({.deterministic = true});
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Linear linear = LinearOf(RandomNormal(random, {1024, 4096}, dtype), std::nullopt);
    const at::Tensor x = RandomNormal(random, {300, 4096}, dtype).to(device());
    const at::Tensor together = NanRows({300, 1024}, 0, dtype, device());
    ASSERT_TRUE(linear.Apply(*context, x, together).ok());
    for (int64_t num_rows : {1, 2, 7, 64, 129}) {
      const at::Tensor few = NanRows({num_rows, 1024}, 0, dtype, device());
      ASSERT_TRUE(linear.Apply(*context, x.narrow(0, 0, num_rows), few).ok());
      EXPECT_TRUE(Equals(few, together.narrow(0, 0, num_rows))) << dtype << " " << num_rows;
    }
  }
  for (const LinearChoice& choice : context->Choices()) EXPECT_EQ(choice.split_k, 1);
}

TEST_F(LinearTest, ReportsItsChoices) {
  std::mt19937 random(5);
  const std::unique_ptr<LinearContext> context = Context();
  // 8 MiB: large enough to be timed.
  const Linear linear = LinearOf(RandomNormal(random, {2048, 2048}, at::kBFloat16), std::nullopt);
  const at::Tensor x = RandomNormal(random, {4, 2048}, at::kBFloat16).to(device());
  const at::Tensor out = at::empty({4, 2048}, x.options());
  ASSERT_TRUE(linear.Apply(*context, x, out).ok());
  ASSERT_TRUE(linear.Apply(*context, x, out).ok());
  if (device().is_cpu()) {
    EXPECT_TRUE(context->Choices().empty());
    return;
  }
  ASSERT_EQ(context->Choices().size(), 1);
  const LinearChoice choice = context->Choices()[0];
  EXPECT_EQ(choice.source, LinearChoice::Source::kTimed);
  EXPECT_LE(choice.best_us, choice.first_us);
  EXPECT_THAT(ToString(choice), HasSubstr("rows 4, 2048 -> 2048 bfloat16"));
}

TEST_F(LinearTest, TimesOnlyLargeWeightsAndOnlyIfTimingIsOn) {
  if (device().is_cpu()) GTEST_SKIP() << "there is nothing to choose on the CPU";
  std::mt19937 random(6);
  const std::unique_ptr<LinearContext> context = Context();
  const auto apply = [&](int64_t size) {
    const Linear linear = LinearOf(RandomNormal(random, {size, size}, at::kBFloat16), std::nullopt);
    const at::Tensor x = RandomNormal(random, {4, size}, at::kBFloat16).to(device());
    EXPECT_TRUE(linear.Apply(*context, x, at::empty({4, size}, x.options())).ok());
    return context->Choices().back().source;
  };
  EXPECT_EQ(apply(256), LinearChoice::Source::kHeuristic);
  context->SetTiming(LinearTiming::kOff);
  EXPECT_EQ(apply(2048), LinearChoice::Source::kHeuristic);
  context->SetTiming(LinearTiming::kOn);
  EXPECT_EQ(apply(2048), LinearChoice::Source::kHeuristic);  // the shape keeps its algorithm
  EXPECT_EQ(apply(2304), LinearChoice::Source::kTimed);
}

TEST_F(LinearTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const std::unique_ptr<LinearContext> context = Context();
  const Linear linear = LinearOf(at::empty({6, 4}), at::empty({6}));
  const at::Tensor out = at::empty({2, 6}, options);
  EXPECT_EQ(linear.Apply(*context, at::empty({2, 5}, options), out),
            absl::InvalidArgumentError(
                "x must be [num_rows, 4] float32: expected [num_rows, 4], got [2, 5]"));
  EXPECT_EQ(linear.Apply(*context, at::empty({3, 4}, options), out),
            absl::InvalidArgumentError("out must be [num_rows, 6]: expected [3, 6], got [2, 6]"));
  EXPECT_EQ(linear.Apply(*context, at::empty({2, 4}, options), out.to(at::kHalf)),
            absl::InvalidArgumentError("out has the wrong dtype: expected float32, got float16"));
  EXPECT_TRUE(linear.Apply(*context, at::empty({0, 4}, options), at::empty({0, 6}, options)).ok());
}

// Compares a gated GEMM with two separate calls.
class GatedLinearTest : public LinearTest {
 protected:
  static constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                                Activation::kClampedSwiglu};

  // Gaps of `gap` elements separate the rows of the results.
  void ExpectSameBits(LinearContext& context, const Linear& linear, Activation activation,
                      const at::Tensor& x, int64_t gap) {
    const int64_t num_rows = x.size(0), size = linear.out_features() / 2;
    const at::ScalarType dtype = x.scalar_type();
    const at::Tensor gate_up = NanRows({num_rows, 2 * size}, gap, dtype, device());
    const at::Tensor expected = NanRows({num_rows, size}, gap, dtype, device());
    ASSERT_TRUE(linear.Apply(context, x, gate_up).ok());
    ASSERT_TRUE(GateMul(activation, gate_up, expected).ok());
    const at::Tensor scratch = NanRows({num_rows, 2 * size}, gap, dtype, device());
    const at::Tensor out = NanRows({num_rows, size}, gap, dtype, device());
    const absl::Status status = linear.ApplyGated(context, activation, x, scratch, out);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Equals(out, expected));
    EXPECT_FALSE(out.isnan().any().item<bool>());
  }
};

TEST_F(GatedLinearTest, MatchesGemmThenGateBitwise) {
  std::mt19937 random(8);
  const std::unique_ptr<LinearContext> context = Context();
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto [in, size] : {Features{64, 1}, {512, 48}, {100, 37}, {192, 640}}) {
      for (bool has_bias : {false, true}) {
        std::optional<at::Tensor> bias;
        if (has_bias) bias = RandomNormal(random, {2 * size}, dtype);
        const Linear linear = LinearOf(RandomNormal(random, {2 * size, in}, dtype) * 0.1, bias);
        for (int64_t num_rows : {1, 8, 9, 70}) {
          SCOPED_TRACE(testing::Message() << dtype << " " << num_rows << " x " << in << " -> 2 x "
                                          << size << (has_bias ? " + bias" : ""));
          ExpectSameBits(*context, linear, kActivations[random() % 3],
                         RandomNormal(random, {num_rows, in}, dtype).to(device()),
                         random() % 2 * 8);
        }
      }
    }
  }
}

TEST_F(GatedLinearTest, InDeterministicModeARowDoesNotDependOnTheBatch) {
  std::mt19937 random(9);
  const std::unique_ptr<LinearContext> context = Context({.deterministic = true});
  const Linear linear =
      LinearOf(RandomNormal(random, {2 * 512, 1024}, at::kBFloat16) * 0.1, std::nullopt);
  const at::Tensor x = RandomNormal(random, {300, 1024}, at::kBFloat16).to(device());
  for (const Activation activation : kActivations) {
    ExpectSameBits(*context, linear, activation, x, 0);
  }
  const auto gated = [&](int64_t num_rows) {
    const at::Tensor out = NanRows({num_rows, 512}, 0, at::kBFloat16, device());
    const at::Tensor scratch = at::empty({num_rows, 1024}, x.options());
    EXPECT_TRUE(
        linear.ApplyGated(*context, Activation::kSilu, x.narrow(0, 0, num_rows), scratch, out)
            .ok());
    return out;
  };
  const at::Tensor together = gated(300);
  for (int64_t num_rows : {1, 7, 64, 129}) {
    EXPECT_TRUE(Equals(gated(num_rows), together.narrow(0, 0, num_rows))) << num_rows;
  }
}

TEST_F(GatedLinearTest, UsesTheFastestKernelForLargeWeights) {
  if (device().is_cpu()) GTEST_SKIP() << "there is nothing to choose on the CPU";
  std::mt19937 random(10);
  const std::unique_ptr<LinearContext> context = Context();
  const at::Tensor weight = RandomNormal(random, {2 * 2048, 2048}, at::kBFloat16).to(device());
  const Linear linear = LinearOf(weight, std::nullopt);
  const Linear next = LinearOf(RandomNormal(random, {2048, 2048}, at::kBFloat16), std::nullopt);
  for (int64_t num_rows : {1, 8, 16, 40, 64, 100}) {
    const at::Tensor x = RandomNormal(random, {num_rows, 2048}, at::kBFloat16).to(device()) * 0.1;
    const auto gate = [&](const at::Tensor& gate_up) {
      return at::silu(gate_up.narrow(1, 0, 2048)) * gate_up.narrow(1, 2048, 2048);
    };
    const at::Tensor scratch = at::empty({num_rows, 4096}, x.options());
    const at::Tensor after = at::empty({num_rows, 2048}, x.options());
    // The first turn chooses the kernel; the second turn uses the choice.
    for (int turn = 0; turn < 2; ++turn) {
      const at::Tensor out = NanRows({num_rows, 2048}, 0, at::kBFloat16, device());
      const absl::Status status = linear.ApplyGated(*context, Activation::kSilu, x, scratch, out);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(IsAsGoodAs(out, gate(at::mm(x, weight.t())),
                             gate(at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()))));
      const LinearChoice choice = context->Choices().back();
      if (turn == 0) {
        EXPECT_TRUE(choice.is_gated);
        EXPECT_EQ(choice.source, LinearChoice::Source::kTimed);
        EXPECT_THAT(ToString(choice), HasSubstr("gated, rows"));
      }
      ASSERT_TRUE(next.Apply(*context, out, after).ok());
      EXPECT_FALSE(after.isnan().any().item<bool>());
    }
  }
}

TEST_F(GatedLinearTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const std::unique_ptr<LinearContext> context = Context();
  const Linear linear = LinearOf(at::empty({6, 4}), std::nullopt);
  const at::Tensor x = at::empty({2, 4}, options);
  const auto apply = [&](const Linear& gated, const at::Tensor& gate_up, const at::Tensor& out) {
    return gated.ApplyGated(*context, Activation::kSilu, x, gate_up, out);
  };
  const at::Tensor gate_up = at::empty({2, 6}, options);
  EXPECT_EQ(apply(linear, at::empty({2, 5}, options), at::empty({2, 3}, options)),
            absl::InvalidArgumentError(
                "gate_up must be [num_rows, 6] float32: expected [num_rows, 6], got [2, 5]"));
  EXPECT_EQ(
      apply(linear, gate_up, at::empty({2, 6}, options)),
      absl::InvalidArgumentError("out must be [num_rows, 3] float32: expected [2, 3], got [2, 6]"));
  EXPECT_EQ(apply(linear, gate_up.to(at::kHalf), at::empty({2, 3}, options)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(apply(linear, gate_up, at::empty({2, 3}, options.dtype(at::kHalf))).code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status odd = apply(LinearOf(at::empty({5, 4}), std::nullopt),
                                 at::empty({2, 5}, options), at::empty({2, 2}, options));
  EXPECT_THAT(std::string(odd.message()), HasSubstr("expected an even number, got 5"));
}

TEST(LinearCreateTest, RejectsBadWeights) {
  EXPECT_FALSE(Linear::Create(at::Tensor(), std::nullopt).ok());
  EXPECT_FALSE(Linear::Create(at::empty({4}), std::nullopt).ok());
  EXPECT_FALSE(Linear::Create(at::empty({4, 0}), std::nullopt).ok());
  EXPECT_FALSE(Linear::Create(at::empty({4, 8}).t(), std::nullopt).ok());
  EXPECT_EQ(
      Linear::Create(at::empty({4, 8}), at::empty({5})).status(),
      absl::InvalidArgumentError("bias must be [out_features] float32: expected [4], got [5]"));
}

TEST(MakeLinearContextTest, RejectsBadOptionsAndDevices) {
  EXPECT_EQ(
      MakeLinearContext(at::kCPU, {.workspace_bytes = -1}).status(),
      absl::InvalidArgumentError("workspace_bytes must not be negative: expected >= 0, got -1"));
  EXPECT_EQ(MakeLinearContext(at::kCPU, {.num_timed_candidates = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeLinearContext(at::kMeta, {}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(LinearChoiceTest, PrintsTheReasonForTheChoice) {
  LinearChoice choice = {.num_rows = 16,
                         .in_features = 4096,
                         .out_features = 6144,
                         .dtype = DType::kBFloat16,
                         .out_dtype = DType::kBFloat16,
                         .source = LinearChoice::Source::kTimed,
                         .num_candidates = 8,
                         .best_us = 21.25f,
                         .first_us = 24,
                         .algorithm = 66,
                         .tile = 20};
  EXPECT_EQ(ToString(choice),
            "rows 16, 4096 -> 6144 bfloat16: algorithm 66 tile 20 split 1, 21.2 us (first proposal "
            "24.0 us, best of 8)");
  choice.num_rows = 0;
  choice.out_dtype = DType::kFloat32;
  choice.source = LinearChoice::Source::kCaptured;
  EXPECT_EQ(ToString(choice),
            "any rows, 4096 -> 6144 bfloat16 -> float32: algorithm 66 tile 20 split 1, first "
            "proposal, chosen during capture");
  choice.is_gated = true;
  choice.tile_form = {.cluster = 4, .row_groups = 3, .turns = 1, .boxes = 2};
  EXPECT_THAT(ToString(choice), HasSubstr(": tiles, cluster 4 rows 192 turns 1 boxes 2, first"));
  choice.skinny_strip = 2;
  EXPECT_THAT(ToString(choice), HasSubstr(": few rows, strip 2, first"));
  EXPECT_THAT(ToString(choice), HasSubstr("gated, any rows, 4096"));
}

}  // namespace
}  // namespace reprise
