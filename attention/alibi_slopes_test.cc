#include "reprise/attention/alibi_slopes.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

TEST(AlibiSlopesTest, PowersOfTwoMakeAGeometricSeries) {
  EXPECT_THAT(AlibiSlopes(1), ElementsAre(1.0f / 256));
  EXPECT_THAT(AlibiSlopes(8), ElementsAre(1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32,
                                          1.0f / 64, 1.0f / 128, 1.0f / 256));
}

TEST(AlibiSlopesTest, OtherHeadCountsUseEveryOtherSlopeOfTheDoubledCount) {
  // 4 heads: 2^-2, 2^-4, 2^-6, 2^-8. Then the first and third slope of 8 heads: 2^-1, 2^-3.
  EXPECT_THAT(AlibiSlopes(6), ElementsAre(0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f));
  // The paper's 12 heads: the slopes of 8 heads, and every other slope of 16 heads, from 2^-0.5.
  EXPECT_THAT(AlibiSlopes(12).back(), FloatNear(0.0883883476f, 1e-9f));  // 2^-3.5
  EXPECT_EQ(AlibiSlopes(12).size(), 12u);
}

TEST(AlibiSlopesTest, SlopesAreDistinctAndBelowOneForAnyHeadCount) {
  for (int num_heads = 1; num_heads <= 130; ++num_heads) {
    std::vector<float> slopes = AlibiSlopes(num_heads);
    ASSERT_EQ(slopes.size(), static_cast<size_t>(num_heads));
    std::sort(slopes.begin(), slopes.end());
    EXPECT_GT(slopes.front(), 0.0f);
    EXPECT_LT(slopes.back(), 1.0f);
    EXPECT_EQ(std::adjacent_find(slopes.begin(), slopes.end()), slopes.end()) << num_heads;
  }
}

}  // namespace
}  // namespace reprise
