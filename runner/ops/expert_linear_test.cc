#include "reprise/runner/ops/expert_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

class ExpertLinearTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    auto context = MakeLinearContext(device(), {});
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }

  std::unique_ptr<LinearContext> context_;
};

// Computes the products one after the other: in float64, or in float32 with sums in the worst
// order.
at::Tensor Products(const at::Tensor& x, const std::vector<int64_t>& chosen,
                    const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    at::ScalarType precision) {
  const int64_t per_row = static_cast<int64_t>(chosen.size()) / x.size(0);
  std::vector<at::Tensor> rows;
  for (size_t pair = 0; pair < chosen.size(); ++pair) {
    const at::Tensor row = x[static_cast<int64_t>(pair) / per_row].to(precision);
    const at::Tensor matrix = weight[chosen[pair]].to(precision);
    at::Tensor product = precision == at::kFloat ? ProductInOneChain(row.unsqueeze(0), matrix)[0]
                                                 : at::mv(matrix, row);
    if (bias.has_value()) product = product + (*bias)[chosen[pair]].to(precision);
    rows.push_back(product);
  }
  return at::stack(rows);
}

std::vector<int64_t> RandomChoice(std::mt19937& random, int64_t num_pairs, int64_t num_experts) {
  std::vector<int64_t> chosen(num_pairs);
  for (int64_t& expert : chosen) expert = static_cast<int64_t>(random() % num_experts);
  return chosen;
}

TEST_F(ExpertLinearTest, EachPairIsMultipliedByTheWeightOfItsExpert) {
  std::mt19937 random(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    // Covers fewer pairs than experts, the number of rows that the kernel processes together, one
    // more, several chunks of its list, and odd numbers of features.
    for (const auto& [num_rows, per_row, num_experts, in, out] :
         {std::tuple(1, 1, 1, 8, 1), std::tuple(1, 2, 8, 64, 96), std::tuple(4, 2, 1, 32, 33),
          std::tuple(9, 1, 1, 40, 32), std::tuple(5, 3, 7, 13, 5), std::tuple(33, 8, 3, 24, 70),
          std::tuple(33, 8, 3, 24, 72), std::tuple(2, 4, 128, 256, 31)}) {
      const bool biased = random() % 2 == 0;
      SCOPED_TRACE(testing::Message()
                   << dtype << " " << num_rows << " x " << per_row << " of " << num_experts << ", "
                   << in << " -> " << out << " " << biased);
      const at::Tensor x = RandomNormal(random, {num_rows, in}, dtype);
      const at::Tensor weight = RandomNormal(random, {num_experts, out, in}, dtype);
      std::optional<at::Tensor> bias, device_bias;
      if (biased) {
        bias = RandomNormal(random, {num_experts, out}, dtype);
        device_bias = bias->to(device());
      }
      const std::vector<int64_t> chosen = RandomChoice(random, num_rows * per_row, num_experts);
      const auto linear = ExpertLinear::Create(weight.to(device()), device_bias);
      ASSERT_TRUE(linear.ok()) << linear.status();
      const at::Tensor got = NanRows({num_rows * per_row, out}, 3, dtype, device());
      ASSERT_TRUE(
          linear
              ->Apply(*context_, WithGaps(x.to(device()), 8), at::tensor(chosen).to(device()), got)
              .ok());
      EXPECT_TRUE(IsAsGoodAs(got, Products(x, chosen, weight, bias, at::kFloat).to(dtype),
                             Products(x, chosen, weight, bias, at::kDouble)));

      // cuBLASLt lacks algorithms for some alignments.
      if (!device().is_cpu() && (in % 8 != 0 || out % 8 != 0)) continue;
      const at::Tensor all = NanRows({num_rows, num_experts, out}, 8, dtype, device());
      ASSERT_TRUE(linear
                      ->ApplyAll(*context_,
                                 x.to(device()).unsqueeze(1).expand({num_rows, num_experts, in}),
                                 all)
                      .ok());
      std::vector<int64_t> every;
      for (int64_t i = 0; i < num_rows * num_experts; ++i) every.push_back(i % num_experts);
      // The product is rounded before the bias is added.
      at::Tensor rounded = Products(x, every, weight, std::nullopt, at::kFloat).to(dtype);
      if (biased) rounded = rounded + bias->repeat({num_rows, 1});
      EXPECT_TRUE(
          IsAsGoodAs(all.flatten(0, 1), rounded, Products(x, every, weight, bias, at::kDouble)));
    }
  }
}

TEST_F(ExpertLinearTest, ARowDoesNotDependOnTheBatch) {
  std::mt19937 random(2);
  const at::Tensor x = RandomNormal(random, {40, 64}, at::kBFloat16).to(device());
  const auto linear = ExpertLinear::Create(
      RandomNormal(random, {4, 48, 64}, at::kBFloat16).to(device()), std::nullopt);
  ASSERT_TRUE(linear.ok());
  auto context = MakeLinearContext(device(), {.deterministic = true});
  ASSERT_TRUE(context.ok());
  const at::Tensor chosen = at::tensor(RandomChoice(random, 80, 4)).to(device());
  const at::Tensor together = at::empty({80, 48}, x.options());
  ASSERT_TRUE(linear->Apply(**context, x, chosen, together).ok());
  for (int64_t row = 0; row < 40; ++row) {
    const at::Tensor alone = at::empty({2, 48}, x.options());
    ASSERT_TRUE(
        linear->Apply(**context, x.narrow(0, row, 1), chosen.narrow(0, 2 * row, 2), alone).ok());
    EXPECT_TRUE(Equals(alone, together.narrow(0, 2 * row, 2))) << row;
  }
}

TEST_F(ExpertLinearTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  EXPECT_FALSE(ExpertLinear::Create(at::zeros({4, 8}, options), std::nullopt).ok());
  EXPECT_FALSE(ExpertLinear::Create(at::zeros({4, 0, 8}, options), std::nullopt).ok());
  EXPECT_FALSE(
      ExpertLinear::Create(at::zeros({4, 8, 6}, options).transpose(1, 2), std::nullopt).ok());
  EXPECT_FALSE(
      ExpertLinear::Create(at::zeros({4, 6, 8}, options), at::zeros({4, 8}, options)).ok());
  const auto linear = ExpertLinear::Create(at::zeros({4, 6, 8}, options), std::nullopt);
  ASSERT_TRUE(linear.ok()) << linear.status();
  const at::Tensor x = at::zeros({2, 8}, options);
  const at::Tensor chosen = at::zeros({4}, options.dtype(at::kLong));
  const at::Tensor out = at::zeros({4, 6}, options);
  EXPECT_TRUE(linear->Apply(*context_, x, chosen, out).ok());
  EXPECT_EQ(linear->Apply(*context_, at::zeros({3, 8}, options), chosen, out),
            absl::InvalidArgumentError("chosen must have equally many experts per row of x: "
                                       "expected a multiple of 3, got 4"));
  EXPECT_FALSE(linear->Apply(*context_, at::zeros({2, 7}, options), chosen, out).ok());
  EXPECT_FALSE(linear->Apply(*context_, x, chosen.to(at::kInt), out).ok());
  EXPECT_FALSE(linear->Apply(*context_, x, chosen, at::zeros({2, 6}, options)).ok());
  EXPECT_FALSE(linear->ApplyAll(*context_, x, out).ok());
}

TEST_F(ExpertLinearTest, UnknownExpertIsNotRead) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const auto linear = ExpertLinear::Create(at::zeros({4, 6, 8}, options) + 1, std::nullopt);
  ASSERT_TRUE(linear.ok());
  const at::Tensor x = at::zeros({3, 8}, options) + 1;
  const at::Tensor out = at::zeros({3, 6}, options) + 5;
  const at::Tensor chosen = at::tensor(std::vector<int64_t>{-1, 3, 4}).to(device());
  const absl::Status status = linear->Apply(*context_, x, chosen, out);
#ifdef REPRISE_TEST_ON_GPU
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> expected = {0, 8, 0};
#else
  EXPECT_EQ(status,
            absl::OutOfRangeError("chosen must name experts: expected [0, 4), got -1 at 0"));
  const std::vector<float> expected = {5, 5, 5};
#endif
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_EQ(out[row].min().item<float>(), expected[row]);
    EXPECT_EQ(out[row].max().item<float>(), expected[row]);
  }
}

}  // namespace
}  // namespace reprise
