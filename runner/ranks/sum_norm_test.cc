#include "reprise/runner/ranks/sum_norm.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ranks/over_ranks.h"

namespace reprise {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr float kEps = 1e-5f;

TEST(SumNormTest, MatchesTheSumFollowedByTheNorm) {
  for (const int world : {1, 2, 3}) {
    for (const bool deterministic : {false, true}) {
      const auto results = RunThreadRanks(world, [&](Collectives& ranks) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<LinearContext> context,
                                 MakeLinearContext(at::kCPU, {.deterministic = deterministic}));
        for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
          for (const NormWeight form : {NormWeight::kScale, NormWeight::kOnePlus}) {
            // All values except the summands are the same on all ranks.
            const auto values = [&](int64_t rows, float scale) {
              std::vector<float> row(rows * 24);
              for (size_t i = 0; i < row.size(); ++i) {
                row[i] = scale * std::sin(static_cast<float>(1 + i * i % 101));
              }
              return at::tensor(row).view({rows, 24}).to(dtype);
            };
            const at::Tensor delta = values(5, 0.3f + static_cast<float>(ranks.ranks().rank));
            const at::Tensor residual = values(5, 1.7f), weight = values(1, 0.9f).view({24});
            const at::Tensor sum = delta.clone(), expected_residual = residual.clone();
            const at::Tensor expected = at::empty_like(delta), out = at::empty_like(delta);
            REPRISE_RETURN_IF_ERROR(SumOverRanks(&ranks, *context, sum));
            REPRISE_RETURN_IF_ERROR(
                AddRmsNorm(sum, expected_residual, weight, kEps, expected, form));
            REPRISE_RETURN_IF_ERROR(
                SumAddRmsNorm(&ranks, *context, delta.clone(), residual, weight, kEps, out, form));
            EXPECT_TRUE(out.equal(expected)) << dtype;
            EXPECT_TRUE(residual.equal(expected_residual)) << dtype;
            // In place.
            residual.copy_(values(5, 1.7f));
            REPRISE_RETURN_IF_ERROR(
                SumAddRmsNorm(&ranks, *context, delta, residual, weight, kEps, delta, form));
            EXPECT_TRUE(delta.equal(expected)) << dtype;
            EXPECT_TRUE(residual.equal(expected_residual)) << dtype;
          }
        }
        return absl::OkStatus();
      });
      EXPECT_THAT(results, Each(absl::OkStatus())) << world << " ranks";
    }
  }
}

TEST(SumNormTest, WithoutCollectivesMatchesTheNormAndItsErrors) {
  const auto context = MakeLinearContext(at::kCPU, {});
  ASSERT_TRUE(context.ok()) << context.status();
  const at::Tensor delta = at::full({2, 8}, 1.0f), residual = at::full({2, 8}, 2.0f);
  const at::Tensor weight = at::full({8}, 1.0f), out = at::empty_like(delta);
  ASSERT_TRUE(SumAddRmsNorm(nullptr, **context, delta, residual, weight, 0, out).ok());
  EXPECT_TRUE(residual.equal(at::full({2, 8}, 3.0f)));
  EXPECT_TRUE(out.equal(weight.expand({2, 8})));
  const absl::Status status =
      SumAddRmsNorm(nullptr, **context, delta, residual, weight.narrow(0, 0, 7), 0, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weight"));
}

}  // namespace
}  // namespace reprise
