#include "reprise/runner/ops/head_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

class HeadLinearTest : public DeviceTest {
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

// Computes the reference in the given precision.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight, at::ScalarType precision) {
  return at::bmm(x.transpose(0, 1).to(precision), weight.to(precision).transpose(1, 2))
      .transpose(0, 1);
}

TEST_F(HeadLinearTest, EachHeadUsesItsWeight) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [num_tokens, num_heads, in, out] :
         {std::tuple(1, 1, 8, 16), std::tuple(1, 8, 32, 64), std::tuple(5, 3, 64, 24),
          std::tuple(33, 16, 128, 512), std::tuple(4, 16, 512, 128)}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << num_tokens << " x " << num_heads << " x "
                                      << in << " -> " << out);
      const at::Tensor x = RandomNormal(random, {num_tokens, num_heads, in}, dtype);
      const at::Tensor weight = RandomNormal(random, {num_heads, out, in}, dtype);
      const auto linear = HeadLinear::Create(weight.to(device()));
      ASSERT_TRUE(linear.ok()) << linear.status();
      // x and out are parts of wider heads: gaps of a multiple of 16 bytes keep the alignment.
      const at::Tensor got = NanRows({num_tokens, num_heads, out}, 8, dtype, device());
      ASSERT_TRUE(linear->Apply(*context_, WithGaps(x.to(device()), 16), got).ok());
      EXPECT_TRUE(IsAsGoodAs(got, Product(x, weight, at::kFloat).to(dtype),
                             Product(x, weight, at::kDouble)));
    }
  }
}

TEST_F(HeadLinearTest, WeightsMayBePartsOfOneMatrix) {
  std::mt19937 random(2);
  // kv_b_proj of MLA: the rows of each head's keys, then the rows of its values.
  const at::Tensor both = RandomNormal(random, {4, 24 + 16, 64}, at::kFloat);
  const at::Tensor x = RandomNormal(random, {3, 4, 64}, at::kFloat);
  const auto linear = HeadLinear::Create(both.to(device()).narrow(1, 24, 16));
  ASSERT_TRUE(linear.ok()) << linear.status();
  const at::Tensor got = at::empty({3, 4, 16}, at::TensorOptions(device()).dtype(at::kFloat));
  ASSERT_TRUE(linear->Apply(*context_, x.to(device()), got).ok());
  const at::Tensor weight = both.narrow(1, 24, 16);
  EXPECT_TRUE(IsAsGoodAs(got, Product(x, weight, at::kFloat), Product(x, weight, at::kDouble)));
}

TEST_F(HeadLinearTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  EXPECT_FALSE(HeadLinear::Create(at::zeros({4, 8}, options)).ok());
  EXPECT_FALSE(HeadLinear::Create(at::zeros({4, 8, 0}, options)).ok());
  EXPECT_FALSE(HeadLinear::Create(at::zeros({4, 8, 8}, options.dtype(at::kInt))).ok());
  EXPECT_FALSE(HeadLinear::Create(at::zeros({4, 8, 16}, options).transpose(1, 2)).ok());
  const auto linear = HeadLinear::Create(at::zeros({4, 8, 16}, options));
  ASSERT_TRUE(linear.ok());
  const at::Tensor out = at::zeros({2, 4, 8}, options);
  EXPECT_TRUE(linear->Apply(*context_, at::zeros({2, 4, 16}, options), out).ok());
  EXPECT_EQ(linear->Apply(*context_, at::zeros({2, 3, 16}, options), out),
            absl::InvalidArgumentError(
                "x must be [num_tokens, 4, 16] float32: expected [num_tokens, 4, 16], got [2, 3, "
                "16]"));
  EXPECT_FALSE(linear->Apply(*context_, at::zeros({3, 4, 16}, options), out).ok());
  EXPECT_FALSE(linear->Apply(*context_, at::zeros({2, 4, 16}, options.dtype(at::kHalf)), out).ok());
  EXPECT_TRUE(
      linear->Apply(*context_, at::zeros({0, 4, 16}, options), at::zeros({0, 4, 8}, options)).ok());
}

}  // namespace
}  // namespace reprise
