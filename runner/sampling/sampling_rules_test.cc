#include "reprise/runner/sampling/sampling_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(OrderKeyTest, MatchesTheOrderOfFloatsWithNanBelowAll) {
  const float ascending[] = {-kInfinity, -3e38f, -1.0f, -1e-40f,  0.0f,
                             1e-40f,     1.0f,   3e38f, kInfinity};
  EXPECT_GT(OrderKey(-kInfinity), OrderKey(kNan));
  EXPECT_EQ(OrderKey(kNan), 0);
  EXPECT_EQ(OrderKey(-kNan), 0);
  for (size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(OrderKey(ascending[i - 1]), OrderKey(ascending[i])) << ascending[i];
  }
  EXPECT_EQ(OrderKey(-0.0f), OrderKey(0.0f));
}

TEST(PackChoiceTest, TheLargerKeyWinsThenTheLowerToken) {
  EXPECT_GT(PackChoice(2, 1000), PackChoice(1, 0));
  EXPECT_GT(PackChoice(2, 3), PackChoice(2, 4));
  EXPECT_EQ(TokenOf(PackChoice(7, 128255)), 128255);
  EXPECT_EQ(TokenOf(kNoChoice), 0);
  EXPECT_GT(PackChoice(OrderKey(-kInfinity), 1 << 30), kNoChoice);
  EXPECT_EQ(KeyOf(PackChoice(7, 128255)), 7);
}

TEST(PackChoiceTest, OnlyLogitsAboveMinusInfinityCanBeChosen) {
  EXPECT_EQ(OrderKey(-kInfinity), kLowestKey);
  EXPECT_FALSE(CanBeChosen(kNoChoice));
  EXPECT_FALSE(CanBeChosen(PackChoice(OrderKey(kNan), 3)));
  EXPECT_FALSE(CanBeChosen(PackChoice(OrderKey(-kInfinity), 3)));
  EXPECT_TRUE(CanBeChosen(PackChoice(OrderKey(-3.4e38f), 3)));
  EXPECT_TRUE(CanBeChosen(PackChoice(OrderKey(kInfinity), 3)));
}

TEST(LogOfTest, IsRightToTwoUnitsInTheLastPlace) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) {
    const float x = std::ldexp(std::uniform_real_distribution<float>(1, 2)(random),
                               std::uniform_int_distribution<int>(-40, 10)(random));
    const double expected = std::log(static_cast<double>(x));
    EXPECT_NEAR(LogOf(x), expected, 2.4e-7 * std::max(std::abs(expected), 0.05)) << x;
  }
}

TEST(GumbelOfTest, IsTheLogarithmOfALogarithm) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000000; ++i) {
    // Small numbers give the large variates, which decide the draw.
    const uint32_t bits = static_cast<uint32_t>(random()) >> (random() % 32);
    const double u = 1 - (bits + 0.5) / 4294967296.0;
    const double expected = -std::log(-std::log(u));
    // 1 - u is rounded to 2^-25 in the worst case; the derivative of g by u is 1 / (u log(1 / u)).
    const double rounding = 0x1p-25 / (u * -std::log(u));
    EXPECT_NEAR(GumbelOf(bits), expected, 1e-6 * std::max(1.0, std::abs(expected)) + rounding)
        << bits;
  }
}

TEST(GumbelOfTest, StaysWithinItsBounds) {
  EXPECT_LT(GumbelOf(0), kMaxGumbel);
  EXPECT_GT(GumbelOf(0), kMaxGumbel - 0.2f);
  EXPECT_GT(GumbelOf(0xffffffff), kMinGumbel);
  EXPECT_LT(GumbelOf(0xffffffff), kMinGumbel + 0.2f);
  for (uint32_t bits : {1u, 1000u, 0x7fffffffu, 0x80000000u, 0xfffffeffu, 0xffffff80u}) {
    EXPECT_TRUE(std::isfinite(GumbelOf(bits))) << bits;
    EXPECT_GE(GumbelOf(bits), GumbelOf(bits + 100)) << bits;
  }
}

TEST(MassOfTest, IsTheExponentialInFixedPoint) {
  EXPECT_EQ(MassOf(0), uint64_t{1} << 40);
  EXPECT_EQ(MassOf(-kInfinity), 0);
  EXPECT_EQ(MassOf(kNan), 0);
  EXPECT_EQ(MassOf(-28), 0);  // exp(-28) = 6.9e-13 < 2^-40 = 9.1e-13
  EXPECT_EQ(MassOf(-27.5f), 1);
  std::mt19937 random(3);
  for (int i = 0; i < 1000000; ++i) {
    const float distance = std::uniform_real_distribution<float>(-28, 0)(random);
    const double expected = std::exp(static_cast<double>(distance)) * 0x1p40;
    EXPECT_NEAR(MassOf(distance), expected, 1 + 2e-7 * expected) << distance;
  }
}

TEST(ScaledDistanceTest, SurvivesInfinitiesAndTinyTemperatures) {
  EXPECT_EQ(ScaledDistance(kInfinity, kInfinity, 1), 0);
  EXPECT_EQ(ScaledDistance(-kInfinity, -kInfinity, 1), 0);
  EXPECT_EQ(ScaledDistance(1, kInfinity, 1), -kInfinity);
  EXPECT_EQ(ScaledDistance(1, 2, 1e-45f), -kInfinity);
  EXPECT_EQ(ScaledDistance(2, 2, 1e-45f), 0);
  EXPECT_EQ(ScaledDistance(-3e38f, 3e38f, 1), -kInfinity);
}

TEST(TopPTargetTest, RoundsUpAndIsNeverZero) {
  EXPECT_EQ(TopPTarget(0.5f, 10), 5);
  EXPECT_EQ(TopPTarget(0.5f, 11), 6);
  EXPECT_EQ(TopPTarget(1e-30f, 11), 1);
  EXPECT_EQ(TopPTarget(0, 11), 1);
  EXPECT_EQ(TopPTarget(-1, 11), 1);
  EXPECT_LE(TopPTarget(0.99999994f, uint64_t{1} << 57), uint64_t{1} << 57);
}

TEST(MinPTargetTest, IsAFractionOfTheLargestMassAndKeepsTheLargestAlways) {
  EXPECT_EQ(MinPTarget(0.5f), uint64_t{1} << 39);
  EXPECT_EQ(MinPTarget(1e-20f), 1);
  EXPECT_EQ(MinPTarget(0x1.8p-40f), 2);  // rounded up
  for (float all : {1.0f, 1.5f, kInfinity, kNan}) EXPECT_EQ(MinPTarget(all), MassOf(0)) << all;
  EXPECT_EQ(MinMass({}), 0);
  EXPECT_EQ(MinMass({.min_p = kNan}), 0);
  EXPECT_EQ(MinMass({.min_p = -1}), 0);
  EXPECT_TRUE(KeepsMass(0, -kInfinity));
  EXPECT_FALSE(KeepsMass(1, -kInfinity));
  EXPECT_TRUE(KeepsMass(MinPTarget(1), 0));
  EXPECT_FALSE(KeepsMass(MinPTarget(1), -1e-6f));
}

TEST(RandomBitsOfTest, DependsOnSeedIndexAndToken) {
  const PhiloxBlock base = RandomBitsOf({.seed = 1}, 5, 7);
  EXPECT_EQ(base, Philox4x32({{7, 0, 5, 0}}, {{1, 0}}));
  EXPECT_NE(base, RandomBitsOf({.seed = 1 + (uint64_t{1} << 32)}, 5, 7));
  EXPECT_NE(base, RandomBitsOf({.seed = 1}, 5 + (int64_t{1} << 32), 7));
  EXPECT_NE(base, RandomBitsOf({.seed = 1}, 5, 8));
}

}  // namespace
}  // namespace reprise
