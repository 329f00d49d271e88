#include "reprise/runner/ops/merge_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class MergeAttentionTest : public DeviceTest {};

// Merges two parts, in the given precision.
at::Tensor Merged(const at::Tensor& a, const at::Tensor& a_lse, const at::Tensor& b,
                  const at::Tensor& b_lse, at::ScalarType precision) {
  const at::Tensor lse = at::logaddexp(a_lse.to(precision), b_lse.to(precision));
  const auto weighted = [&](const at::Tensor& out, const at::Tensor& part_lse) {
    return out.to(precision) * (part_lse.to(precision) - lse).exp().unsqueeze(2);
  };
  return weighted(a, a_lse) + weighted(b, b_lse);
}

TEST_F(MergeAttentionTest, WeighsPartsByTheirLse) {
  std::mt19937 random(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [num_tokens, num_heads, head_dim] :
         {std::tuple(1, 1, 8), std::tuple(5, 3, 20), std::tuple(40, 16, 128)}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << num_tokens << " x " << num_heads);
      const at::Tensor a = RandomNormal(random, {num_tokens, num_heads, head_dim}, dtype);
      const at::Tensor b = RandomNormal(random, {num_tokens, num_heads, head_dim}, dtype);
      const at::Tensor a_lse = RandomNormal(random, {num_tokens, num_heads}, at::kFloat) * 3;
      const at::Tensor b_lse = RandomNormal(random, {num_tokens, num_heads}, at::kFloat) * 3;
      const at::Tensor got = NanRows({num_tokens, num_heads, head_dim}, 8, dtype, device());
      const at::Tensor lse = at::full_like(a_lse, kInfinity).to(device());
      const absl::Status status = MergeAttention(
          {a.to(device()), b.to(device())}, {a_lse.to(device()), b_lse.to(device())}, got, lse);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(at::allclose(lse.cpu(), at::logaddexp(a_lse, b_lse), 1e-6, 1e-6));
      EXPECT_TRUE(IsAsGoodAs(got, Merged(a, a_lse, b, b_lse, at::kFloat).to(dtype),
                             Merged(a, a_lse, b, b_lse, at::kDouble)));
    }
  }
}

TEST_F(MergeAttentionTest, PartWithoutKeysIsIgnoredForAnyContents) {
  std::mt19937 random(2);
  const at::Tensor a = RandomNormal(random, {3, 2, 8}, at::kFloat).to(device());
  const at::Tensor b = at::full_like(a, std::numeric_limits<float>::quiet_NaN());
  const at::Tensor a_lse = at::zeros({3, 2}, a.options());
  const at::Tensor b_lse = at::full_like(a_lse, -kInfinity);
  // The result replaces the first part, as a model may request.
  const at::Tensor out = a.clone();
  ASSERT_TRUE(MergeAttention({out, b}, {a_lse, b_lse}, out).ok());
  EXPECT_TRUE(Equals(out, a));
  ASSERT_TRUE(MergeAttention({b, b}, {b_lse, b_lse}, out).ok());
  EXPECT_TRUE(Equals(out, at::zeros_like(a)));
}

TEST_F(MergeAttentionTest, MergesMorePartsThanOneLaunchSupportsInGroups) {
  std::mt19937 random(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t num_parts : {64, 65, 130}) {
      SCOPED_TRACE(testing::Message() << num_parts << " parts of " << dtype);
      const at::Tensor parts = RandomNormal(random, {num_parts, 5, 3, 20}, dtype);
      const at::Tensor part_lses = RandomNormal(random, {num_parts, 5, 3}, at::kFloat) * 3;
      const at::Tensor want_lse = part_lses.to(at::kDouble).logsumexp(0);
      const at::Tensor weights = (part_lses.to(at::kDouble) - want_lse).exp().unsqueeze(3);
      const at::Tensor want = (weights * parts.to(at::kDouble)).sum(0);
      const std::vector<at::Tensor> outs = parts.to(device()).unbind(0);
      const std::vector<at::Tensor> lses = part_lses.to(device()).unbind(0);
      // The result replaces the last part, which is in the last group.
      const absl::Status status = MergeAttention(outs, lses, outs.back(), lses.back());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(at::allclose(lses.back().cpu().to(at::kDouble), want_lse, 1e-6, 1e-6));
      const double limit = dtype == at::kFloat ? 1e-6 : 4e-3;
      EXPECT_TRUE(at::allclose(outs.back().cpu().to(at::kDouble), want, limit, limit));
    }
  }
}

TEST_F(MergeAttentionTest, NamesTheMismatchedArgument) {
  const at::Tensor part = at::zeros({3, 2, 8}, at::TensorOptions(device()).dtype(at::kFloat));
  const at::Tensor lse = at::zeros({3, 2}, part.options());
  const auto error = [&](const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& lses,
                         const at::Tensor& out) {
    return std::string(MergeAttention(outs, lses, out).message());
  };
  EXPECT_THAT(error({}, {}, part), HasSubstr("expected 1 to 4096 parts with one lse each, got 0"));
  EXPECT_THAT(error({part, part}, {lse}, part), HasSubstr("got 2 and 1"));
  EXPECT_THAT(error({part, at::zeros({3, 2, 9}, part.options())}, {lse, lse}, part),
              HasSubstr("outs must be [num_tokens, num_heads, head_dim]"));
  EXPECT_THAT(error({part}, {lse.to(at::kHalf)}, part), HasSubstr("lses must be"));
  EXPECT_THAT(error({part}, {lse}, part.to(at::kInt)), HasSubstr("out has the wrong dtype"));
  EXPECT_THAT(error({part, at::zeros({3, 8, 2}, part.options()).transpose(1, 2)}, {lse, lse}, part),
              HasSubstr("outs"));
  EXPECT_THAT(error({part, WithGaps(part, 8)}, {lse, lse}, part), HasSubstr("the same strides"));
  const at::Tensor empty = at::zeros({0, 2, 8}, part.options());
  EXPECT_EQ(error({empty}, {at::zeros({0, 2}, part.options())}, empty), "");
}

}  // namespace
}  // namespace reprise
