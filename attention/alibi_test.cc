#include "attention/alibi.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(AlibiTest, PowersOfTwoGetAGeometricSeries) {
  EXPECT_THAT(AlibiSlopes(8), ElementsAre(0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f,
                                          0.0078125f, 0.00390625f));
  EXPECT_THAT(AlibiSlopes(1), ElementsAre(0.00390625f));  // 2^-8
}

// 8 slopes of 8 heads, then the first, third, fifth and seventh of 16: 2^-0.5, 2^-1.5, ...
TEST(AlibiTest, TwelveHeadsTakeEveryOtherSlopeOfSixteen) {
  const std::vector<float> slopes = AlibiSlopes(12);
  ASSERT_EQ(slopes.size(), 12u);
  EXPECT_EQ(slopes[7], 0.00390625f);
  EXPECT_FLOAT_EQ(slopes[8], 0.70710678f);
  EXPECT_FLOAT_EQ(slopes[9], 0.35355339f);
  EXPECT_FLOAT_EQ(slopes[11], 0.088388346f);
}

TEST(AlibiTest, AnyCountGivesDistinctSlopesBetweenZeroAndOne) {
  EXPECT_THAT(AlibiSlopes(0), IsEmpty());
  for (int heads = 1; heads <= 130; ++heads) {
    std::vector<float> slopes = AlibiSlopes(heads);
    ASSERT_EQ(static_cast<int>(slopes.size()), heads);
    std::sort(slopes.begin(), slopes.end());
    EXPECT_GT(slopes.front(), 0.0f);
    EXPECT_LT(slopes.back(), 1.0f);
    EXPECT_EQ(std::adjacent_find(slopes.begin(), slopes.end()), slopes.end()) << heads;
  }
}

}  // namespace
}  // namespace reprise
