// Checks that the error measure finds every planted fault.

#include "reprise/attention/testing/attention_error.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "gtest/gtest.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

constexpr int kHeadDim = 8;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Three heads of tokens. The second head sees no key.
class AttentionErrorTest : public ::testing::Test {
 protected:
  AttentionErrorTest() {
    for (int i = 0; i < 3 * kHeadDim; ++i) {
      const bool is_empty = i / kHeadDim == 1;
      const double value = is_empty ? 0.0 : std::sin(1.0 + i);
      exact_.out.push_back(value);
      own_.out.push_back(static_cast<float>(value) * (1 + 0x1p-9f));  // half a bfloat16 rounding
    }
    exact_.lse = {1.5, -kInf, -0.75};
    own_.lse = {1.5f, -INFINITY, -0.75f};
    got_ = {.out = exact_.out, .lse = exact_.lse};
  }

  AttentionError Error() const {
    return ErrorOf(got_, exact_, own_, kHeadDim, {.dtype = DType::kBFloat16, .head_dim = kHeadDim},
                   {.dtype = DType::kBFloat16});
  }

  ReferenceResult<double> exact_;
  ReferenceResult<float> own_;
  AttentionValues got_;
};

TEST_F(AttentionErrorTest, CorrectResultIsWithinTheLimits) {
  const AttentionError error = Error();
  EXPECT_EQ(error.wrong, "");
  EXPECT_LE(error.out, error.out_limit);
  EXPECT_LE(error.lse, error.lse_limit);
  EXPECT_GT(error.out_limit, 0);
}

TEST_F(AttentionErrorTest, DetectsNaNInEveryElementOfOutAndLse) {
  for (size_t i = 0; i < got_.out.size(); ++i) {
    const double was = got_.out[i];
    got_.out[i] = i % 2 == 0 ? kNan : kInf;
    EXPECT_NE(Error().wrong, "") << i;
    got_.out[i] = was;
  }
  for (double& lse : got_.lse) {
    const double was = lse;
    lse = kNan;
    EXPECT_NE(Error().wrong, "");
    lse = was;
  }
}

TEST_F(AttentionErrorTest, QueryWithoutKeysRequiresZerosAndMinusInfinity) {
  got_.out[kHeadDim + 3] = 1e-30;
  EXPECT_EQ(Error().wrong.substr(0, 5), "out 1");
  got_.out[kHeadDim + 3] = 0;
  got_.lse[1] = -1e30;
  EXPECT_EQ(Error().wrong.substr(0, 5), "lse 1");
  got_.lse[1] = -kInf;
  got_.lse[0] = -kInf;
  EXPECT_EQ(Error().wrong.substr(0, 5), "lse 0");
}

TEST_F(AttentionErrorTest, ErrorInOneElementExceedsTheLimit) {
  // 2 x 2^-8 roundings of the largest out, and twice the error of the same arithmetic.
  for (size_t i : {size_t{0}, got_.out.size() - 1}) {
    const double was = got_.out[i];
    got_.out[i] += 0.03;
    EXPECT_GT(Error().out, Error().out_limit);
    got_.out[i] = was;
  }
}

TEST_F(AttentionErrorTest, LseWithoutOneKeyExceedsTheLimit) {
  got_.lse[2] += std::log(299.0 / 300);  // one of 300 equal keys
  EXPECT_GT(Error().lse, Error().lse_limit);
}

TEST_F(AttentionErrorTest, TotalsRevealSmallErrorsInEveryCase) {
  ErrorTotals totals;
  for (int round = 0; round < 10; ++round) totals.Add(Error());
  EXPECT_LE(totals.OutRatio(), 2);
  // Each case is within its limit, but the total is not.
  for (size_t i = 0; i < got_.out.size(); ++i) got_.out[i] *= 1 + 3 * 0x1p-9;
  EXPECT_LE(Error().out, Error().out_limit);
  for (int round = 0; round < 100; ++round) totals.Add(Error());
  EXPECT_GT(totals.OutRatio(), 2);
}

}  // namespace
}  // namespace reprise
