#include "reprise/runner/ops/head_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <random>

#include "gtest/gtest.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

constexpr float kEps = 1e-6f;

class HeadNormTest : public DeviceTest {};

// Computes the reference in the given precision. In float32, it is rounded to the dtype of `x`
// before the weight, as in Qwen 3, or after the weight, as in Gemma 3.
at::Tensor Normalised(const at::Tensor& x, const std::optional<at::Tensor>& weight, NormWeight form,
                      at::ScalarType precision) {
  const at::Tensor wide = x.to(precision);
  at::Tensor normalised = wide * at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + kEps);
  if (weight.has_value() && form == NormWeight::kOnePlus) {
    normalised = normalised * (weight->to(precision) + 1);
    return precision == at::kFloat ? normalised.to(x.scalar_type()) : normalised;
  }
  if (precision == at::kFloat) normalised = normalised.to(x.scalar_type());
  return weight.has_value() ? normalised * weight->to(normalised.scalar_type()) : normalised;
}

// q and k as views of one fused projection [num_tokens, (num_q + 2 num_kv) * head_dim].
struct Projection {
  at::Tensor memory;
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
};

Projection Views(const at::Tensor& memory, int64_t num_q, int64_t num_kv, int64_t head_dim) {
  const auto heads = [&](int64_t begin, int64_t num) {
    return memory.narrow(1, begin * head_dim, num * head_dim).unflatten(1, {num, head_dim});
  };
  return {memory, heads(0, num_q), heads(num_q, num_kv), heads(num_q + num_kv, num_kv)};
}

TEST_F(HeadNormTest, MatchesFloat64ForAnyHeadsAndDoesNotChangeV) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t head_dim : {1, 2, 10, 64, 80, 128, 256, 1000}) {
      for (const auto& [num_tokens, num_q, num_kv] :
           {std::tuple(20, 8, 4), std::tuple(30, 5, 1), std::tuple(70, 32, 8)}) {
        if (num_tokens * num_q * head_dim > 300000) continue;
        const bool weighted = random() % 2 == 0;
        SCOPED_TRACE(testing::Message() << dtype << " " << num_tokens << " x " << num_q << "/"
                                        << num_kv << " x " << head_dim << " " << weighted);
        const at::Tensor values =
            RandomNormal(random, {num_tokens, (num_q + 2 * num_kv) * head_dim}, dtype);
        std::optional<at::Tensor> q_weight, k_weight;
        HeadNormOptions options = {
            .eps = kEps, .form = random() % 2 == 0 ? NormWeight::kScale : NormWeight::kOnePlus};
        if (weighted) {
          q_weight = RandomNormal(random, {head_dim}, dtype);
          k_weight = RandomNormal(random, {head_dim}, dtype);
          options.q_weight = q_weight->to(device());
          options.k_weight = k_weight->to(device());
        }
        const Projection before = Views(values, num_q, num_kv, head_dim);
        const Projection after = Views(values.clone().to(device()), num_q, num_kv, head_dim);
        ASSERT_TRUE(NormaliseHeads(after.q, after.k, options).ok());
        // q and k are compared together: LibTorch's own error of a few values may be nearly 0 by
        // chance.
        const auto expected = [&](at::ScalarType precision) {
          return at::cat({Normalised(before.q, q_weight, options.form, precision),
                          Normalised(before.k, k_weight, options.form, precision)},
                         1);
        };
        EXPECT_TRUE(IsAsGoodAs(at::cat({after.q, after.k}, 1), expected(at::kFloat),
                               expected(at::kDouble)));
        EXPECT_TRUE(Equals(after.v, before.v));
      }
    }
  }
}

TEST_F(HeadNormTest, AHeadDoesNotDependOnTheBatch) {
  std::mt19937 random(2);
  const at::Tensor x = RandomNormal(random, {9, 12 * 64}, at::kBFloat16).to(device());
  const at::Tensor together = x.clone();
  const Projection all = Views(together, 8, 2, 64);
  ASSERT_TRUE(NormaliseHeads(all.q, all.k, {}).ok());
  for (int64_t token = 0; token < 9; ++token) {
    const at::Tensor row = x.narrow(0, token, 1).clone();
    const Projection one = Views(row, 8, 2, 64);
    ASSERT_TRUE(NormaliseHeads(one.q, one.k, {}).ok());
    EXPECT_TRUE(Equals(row, together.narrow(0, token, 1))) << token;
  }
}

TEST_F(HeadNormTest, AHeadOfZerosStaysZero) {
  const at::Tensor zeros = at::zeros({2, 3, 64}, at::TensorOptions(device()).dtype(at::kBFloat16));
  const at::Tensor q = zeros.clone();
  const at::Tensor k = zeros.clone();
  ASSERT_TRUE(NormaliseHeads(q, k, {}).ok());
  EXPECT_TRUE(Equals(q, zeros));
  EXPECT_TRUE(Equals(k, zeros));
}

TEST_F(HeadNormTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor q = at::zeros({2, 4, 8}, options);
  const at::Tensor k = at::zeros({2, 2, 8}, options);
  EXPECT_TRUE(NormaliseHeads(q, k, {}).ok());
  EXPECT_EQ(NormaliseHeads(q, at::zeros({2, 2, 6}, options), {}),
            absl::InvalidArgumentError("k must be [num_tokens, num_kv_heads, head_dim] float32: "
                                       "expected [2, num_kv_heads, 8], got [2, 2, 6]"));
  EXPECT_FALSE(NormaliseHeads(q, at::zeros({3, 2, 8}, options), {}).ok());
  EXPECT_FALSE(NormaliseHeads(q, k.to(at::kHalf), {}).ok());
  EXPECT_FALSE(NormaliseHeads(q.to(at::kInt), k, {}).ok());
  EXPECT_FALSE(NormaliseHeads(q.transpose(1, 2), k.transpose(1, 2), {}).ok());
  EXPECT_EQ(
      NormaliseHeads(q, k, {.q_weight = at::zeros({4}, options)}),
      absl::InvalidArgumentError("q_weight must be [head_dim] float32: expected [8], got [4]"));
  EXPECT_FALSE(NormaliseHeads(q, k, {.k_weight = at::zeros({8}, options.dtype(at::kHalf))}).ok());
  EXPECT_TRUE(
      NormaliseHeads(at::zeros({0, 4, 8}, options), at::zeros({0, 2, 8}, options), {}).ok());
}

}  // namespace
}  // namespace reprise
