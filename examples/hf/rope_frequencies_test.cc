#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reprise/hf/rope.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::Pointwise;

// The expected values were computed by PyTorch 2.11 in float32, with the formulas of transformers
// 5.17. FloatEq allows 4 units in the last place: powers of float32 differ by one between
// mathematical libraries.

TEST(RopeFrequenciesTest, PlainFrequenciesAreTheDocumentedPowers) {
  EXPECT_THAT(RopeFrequencies({.theta = 10000}, 8),
              ElementsAre(1, FloatEq(0.1f), FloatEq(0.01f), FloatEq(0.001f)));
  EXPECT_THAT(RopeFrequencies({.theta = 10000}, 2), ElementsAre(1));
}

TEST(RopeFrequenciesTest, PlainFrequenciesAreThoseOfTransformers) {
  EXPECT_THAT(RopeFrequencies({.theta = 10000}, 64), Pointwise(FloatEq(), {1.0,
                                                                           0.749894202,
                                                                           0.562341332,
                                                                           0.421696514,
                                                                           0.316227764,
                                                                           0.237137362,
                                                                           0.177827939,
                                                                           0.133352146,
                                                                           0.100000001,
                                                                           0.0749894157,
                                                                           0.0562341288,
                                                                           0.0421696492,
                                                                           0.0316227786,
                                                                           0.0237137359,
                                                                           0.0177827943,
                                                                           0.0133352149,
                                                                           0.00999999978,
                                                                           0.00749894232,
                                                                           0.00562341325,
                                                                           0.00421696482,
                                                                           0.00316227786,
                                                                           0.00237137382,
                                                                           0.00177827943,
                                                                           0.00133352145,
                                                                           0.00100000005,
                                                                           0.000749894185,
                                                                           0.000562341302,
                                                                           0.000421696488,
                                                                           0.000316227786,
                                                                           0.000237137385,
                                                                           0.00017782794,
                                                                           0.00013335215}));
}

TEST(RopeFrequenciesTest, LinearFrequenciesAreThoseOfTransformers) {
  EXPECT_THAT(RopeFrequencies({.theta = 10000, .scaling = LinearRope{.factor = 4}}, 32),
              Pointwise(FloatEq(), {0.25, 0.140585333, 0.079056941, 0.0444569848, 0.0250000004,
                                    0.0140585322, 0.00790569466, 0.00444569858, 0.00249999994,
                                    0.00140585331, 0.000790569466, 0.000444569858, 0.000250000012,
                                    0.000140585325, 7.90569466e-05, 4.44569851e-05}));
}

TEST(RopeFrequenciesTest, Llama3FrequenciesAreThoseOfTransformers) {
  // The blend is the third: waves between 64 / 4 and 64 / 1 tokens.
  EXPECT_THAT(
      RopeFrequencies({.theta = 500000, .scaling = Llama3Rope{.original_max_seq_len = 64}}, 32),
      Pointwise(FloatEq(),
                {1.0, 0.440366626, 0.079403013, 0.0106746377, 0.00470075384, 0.00207005511,
                 0.000911583134, 0.000401430763, 0.000176776681, 7.78465546e-05, 3.42810235e-05,
                 1.50962178e-05, 6.64786967e-06, 2.92749974e-06, 1.28917316e-06, 5.6770881e-07}));
}

// Plain: 1, 0.1, 0.01, 0.001, of waves of 6.28, 62.8, 628 and 6283 tokens; long are those over 100.
TEST(RopeFrequenciesTest, Llama3WithoutABlendDividesOnlyLongWaves) {
  EXPECT_THAT(RopeFrequencies({.scaling = Llama3Rope{.factor = 4,
                                                     .low_freq_factor = 1,
                                                     .high_freq_factor = 1,
                                                     .original_max_seq_len = 100}},
                              8),
              ElementsAre(1, FloatEq(0.1f), FloatEq(0.0025f), FloatEq(0.00025f)));
}

TEST(RopeFrequenciesTest, Llama3WithoutABlendKeepsTheWaveOfTheBoundItself) {
  // The wave of the first pair, in float32, is exactly original_max_seq_len / low_freq_factor.
  constexpr double kFactor = 8192 / double{6.28318530717958647692f};
  EXPECT_THAT(RopeFrequencies({.scaling = Llama3Rope{.factor = 4,
                                                     .low_freq_factor = kFactor,
                                                     .high_freq_factor = kFactor,
                                                     .original_max_seq_len = 8192}},
                              2),
              ElementsAre(1));
}

TEST(RopeFrequenciesTest, Llama31FrequenciesAreThoseOfTransformers) {
  // Llama 3.1 8B, every fourth. The blend goes from the 29th to the 36th.
  const std::vector<float> all = RopeFrequencies({.theta = 500000, .scaling = Llama3Rope()}, 128);
  ASSERT_EQ(all.size(), 64u);
  std::vector<float> some;
  for (size_t i = 0; i < all.size(); i += 4) some.push_back(all[i]);
  EXPECT_THAT(some,
              Pointwise(FloatEq(), {1.0, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307,
                                    0.0165604409, 0.00729266508, 0.00321144611, 0.000524846022,
                                    7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06,
                                    2.92749974e-06, 1.28917316e-06, 5.6770881e-07}));
  EXPECT_THAT(all[29], FloatEq(0.00216657063));
  EXPECT_THAT(all[35], FloatEq(9.55621217e-05));
}

TEST(RopeFrequenciesTest, YarnFrequenciesAreThoseOfTransformers) {
  // Qwen 3 8B stretched fourfold, every fourth.
  const std::vector<float> all = RopeFrequencies(
      {.theta = 1e6, .scaling = YarnRope{.factor = 4, .original_max_seq_len = 32768}}, 128);
  ASSERT_EQ(all.size(), 64u);
  std::vector<float> some;
  for (size_t i = 0; i < all.size(); i += 4) some.push_back(all[i]);
  EXPECT_THAT(some,
              Pointwise(FloatEq(), {1.0, 0.421696514, 0.177827939, 0.0749894157, 0.0316227786,
                                    0.0133352149, 0.00537532149, 0.00184827659, 0.000602941145,
                                    0.000179841154, 4.44569851e-05, 1.87473561e-05, 7.90569356e-06,
                                    3.33380353e-06, 1.40585337e-06, 5.92843435e-07}));
}

TEST(RopeFrequenciesTest, TheRampOfYarnBeginsAndEndsWhereTransformersHasIt) {
  // Whole pairs, within the head.
  EXPECT_THAT(
      RopeFrequencies({.scaling = YarnRope{.factor = 40, .original_max_seq_len = 4096}}, 16),
      Pointwise(FloatEq(), {1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968,
                            0.000849862176, 2.49999994e-05, 7.90569447e-06}));
  // Fractions of a pair.
  EXPECT_THAT(
      RopeFrequencies(
          {.scaling = YarnRope{.factor = 4, .original_max_seq_len = 64, .truncate = false}}, 16),
      Pointwise(FloatEq(), {1.0, 0.198583528, 0.0255952496, 0.00790569466, 0.00249999994,
                            0.000790569466, 0.000250000012, 7.90569466e-05}));
  // Two ends that are next to each other: a step.
  EXPECT_THAT(
      RopeFrequencies(
          {.scaling =
               YarnRope{.factor = 8, .beta_fast = 2, .beta_slow = 2, .original_max_seq_len = 64}},
          16),
      Pointwise(FloatEq(), {1.0, 0.316227764, 0.0125000002, 0.00395284733, 0.00124999997,
                            0.000395284733, 0.000125000006, 3.95284733e-05}));
}

TEST(RopeFrequenciesTest, OnlyYarnHasAnAttentionFactor) {
  EXPECT_EQ(RopeAttentionFactor({}), 1);
  EXPECT_EQ(RopeAttentionFactor({.scaling = Llama3Rope()}), 1);
  EXPECT_EQ(RopeAttentionFactor({.scaling = YarnRope{.attention_factor = 1.5}}), 1.5);
}

TEST(RopeFrequenciesTest, AFactorOfOneChangesNothing) {
  const std::vector<float> plain = RopeFrequencies({.theta = 500000}, 128);
  EXPECT_EQ(RopeFrequencies({.theta = 500000, .scaling = LinearRope{.factor = 1}}, 128), plain);
  EXPECT_THAT(RopeFrequencies({.theta = 500000, .scaling = Llama3Rope{.factor = 1}}, 128),
              Pointwise(FloatEq(), plain));
}

TEST(RopeFrequenciesTest, FrequenciesFallAndStayPositive) {
  for (const double theta : {2.0, 1e4, 5e5, 1e12}) {
    for (const int head_dim : {2, 20, 80, 4096}) {
      const std::vector<float> f =
          RopeFrequencies({.theta = theta, .scaling = Llama3Rope()}, head_dim);
      ASSERT_EQ(f.size(), static_cast<size_t>(head_dim / 2));
      EXPECT_GT(f.back(), 0);
      for (size_t i = 1; i < f.size(); ++i)
        EXPECT_LT(f[i], f[i - 1]) << theta << " " << head_dim << " " << i;
    }
  }
}

TEST(RopeFrequenciesDeathTest, AnOddHeadCannotBePaired) {
  EXPECT_DEATH(RopeFrequencies({}, 5), "Check failed: rotary_dim % 2 == 0");
  EXPECT_DEATH(RopeFrequencies({}, 0), "Check failed: rotary_dim > 0");
}

}  // namespace
}  // namespace reprise
