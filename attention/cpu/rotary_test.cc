#include "reprise/attention/cpu/rotary.h"

#include <array>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

TEST(HostRotaryTest, PairsAreHalfTheDimsApartWithDescendingFrequencies) {
  HostRotary rotary;
  rotary.Prepare({.rope_theta = 100.0f}, 4);  // frequencies 1 and 100^(-2/4) = 0.1
  std::array<float, 4> x = {1, 1, 0, 0};
  rotary.Apply(2, x.data());
  EXPECT_THAT(x, ElementsAre(FloatNear(std::cos(2.0f), 1e-6f), FloatNear(std::cos(0.2f), 1e-6f),
                             FloatNear(std::sin(2.0f), 1e-6f), FloatNear(std::sin(0.2f), 1e-6f)));
}

TEST(HostRotaryTest, DimsPastRotaryDimAreUnchanged) {
  HostRotary rotary;
  rotary.Prepare({.rotary_dim = 2}, 4);
  std::array<float, 4> x = {1, 0, 5, 6};
  rotary.Apply(1, x.data());
  EXPECT_THAT(x, ElementsAre(FloatNear(std::cos(1.0f), 1e-6f), FloatNear(std::sin(1.0f), 1e-6f),
                             5.0f, 6.0f));
}

TEST(HostRotaryTest, PositionsAreDividedByTheScale) {
  HostRotary rotary;
  rotary.Prepare({.rope_scale = 8.0f}, 2);
  std::array<float, 2> x = {1, 0};
  rotary.Apply(16, x.data());
  EXPECT_THAT(x, ElementsAre(FloatNear(std::cos(2.0f), 1e-6f), FloatNear(std::sin(2.0f), 1e-6f)));
}

TEST(HostRotaryTest, NewParametersReplaceTheOld) {
  HostRotary rotary;
  rotary.Prepare({}, 2);
  rotary.Prepare({.rope_scale = 2.0f}, 2);
  std::array<float, 2> x = {1, 0};
  rotary.Apply(2, x.data());
  EXPECT_NEAR(x[0], std::cos(1.0), 1e-6);
  rotary.Prepare({.rope_scale = 2.0f}, 8);
  std::array<float, 8> y = {0, 0, 0, 1};  // the last pair rotates by 10^4^(-6/8) / 2 per position
  rotary.Apply(1, y.data());
  EXPECT_NEAR(y[7], std::sin(std::pow(1e4, -0.75) / 2), 1e-9);
}

TEST(HostRotaryTest, AnglesAreExactAtLargePositions) {
  HostRotary rotary;
  rotary.Prepare({}, 2);
  std::array<float, 2> x = {1, 0};
  rotary.Apply(1'000'003, x.data());
  EXPECT_NEAR(x[0], std::cos(1'000'003.0), 1e-6);
  EXPECT_NEAR(std::hypot(x[0], x[1]), 1.0, 1e-6);  // a rotation keeps the length
}

}  // namespace
}  // namespace reprise
