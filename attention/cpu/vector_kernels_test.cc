#include "reprise/attention/cpu/vector_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/element_access.h"

namespace reprise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class VectorKernelsTest : public ::testing::TestWithParam<const VectorKernels*> {
 protected:
  const VectorKernels& kernels_ = *GetParam();
};

std::vector<float> RandomFloats(int count, Random& random, double magnitude = 1.0) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(magnitude * random.NearNormal());
  return values;
}

TEST(VectorKernelsTest, BaselineIsAlwaysSupportedAndBestIsTheWidest) {
  EXPECT_STREQ(SupportedVectorKernels().front()->name, "baseline");
  for (const VectorKernels* kernels : SupportedVectorKernels()) {
    EXPECT_LE(kernels->lanes, BestVectorKernels().lanes);
  }
}

TEST_P(VectorKernelsTest, LoadsEveryBitPatternExactly) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    const int num_patterns = SizeOf(dtype) == 1 ? 256 : 65536;
    std::vector<uint8_t> memory(num_patterns * SizeOf(dtype));
    for (int bits = 0; bits < num_patterns; ++bits) {
      std::memcpy(&memory[bits * SizeOf(dtype)], &bits, SizeOf(dtype));
    }
    std::vector<float> loaded(num_patterns);
    // Uses chunks of odd length, two rows at a time, so that remainders are loaded too.
    for (int first = 0; first < num_patterns; first += 37) {
      const void* row = &memory[first * SizeOf(dtype)];
      const void* rows[2] = {memory.data(), row};
      const int count = std::min(37, num_patterns - first);
      std::vector<float> out(2 * 40, -1.0f);
      kernels_.load(rows, 2, dtype, count, out.data(), 40);
      std::copy_n(&out[40], count, &loaded[first]);
      ASSERT_EQ(out[count], -1.0f);
    }
    for (int bits = 0; bits < num_patterns; ++bits) {
      const float expected = LoadElement<float>(memory.data(), dtype, bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(loaded[bits])) << dtype << " " << bits;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(loaded[bits]), std::bit_cast<uint32_t>(expected))
            << dtype << " " << bits;
      }
    }
  }
}

TEST_P(VectorKernelsTest, StoresTheNearestValue) {
  Random random(1);
  std::vector<float> values = {0.0f,       -0.0f,     kInf,        -kInf,    65504.0f,
                               65519.9f,   65520.0f,  1e38f,       0x1p-24f, 0x1p-25f,
                               0x1.8p-25f, -0x1p-14f, 0x1.ffcp-15f};
  for (int i = 0; i < 200000; ++i) {
    // Random bits: all exponents, and NaN.
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random.Bits())));
    values.push_back(static_cast<float>(std::ldexp(random.NearNormal(), random.Int(-26, 17))));
  }
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint8_t> memory(values.size() * SizeOf(dtype));
    kernels_.store(values.data(), 1.0f, static_cast<int64_t>(values.size()), dtype, memory.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto stored = LoadElement<double>(memory.data(), dtype, static_cast<int64_t>(i));
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(stored)) << dtype;
      } else {
        ASSERT_EQ(stored, RoundTo(dtype, values[i])) << dtype << " " << values[i];
      }
    }
  }
}

TEST_P(VectorKernelsTest, DotsAreCorrectAndIndependentOfThePosition) {
  Random random(2);
  for (int dim : {16, 48, 64, 128}) {
    const std::vector<float> q = RandomFloats(9 * dim, random);
    const std::vector<float> k = RandomFloats(8 * dim, random);
    std::vector<const float*> keys;
    for (int j = 0; j < 8; ++j) keys.push_back(&k[j * dim]);
    for (int num_q = 1; num_q <= 9; ++num_q) {
      std::vector<float> scores(num_q * 16, NAN);
      kernels_.dots(q.data(), num_q, keys.data(), 8, dim, scores.data(), 16);
      for (int i = 0; i < num_q; ++i) {
        for (int j = 0; j < 8; ++j) {
          double expected = 0;
          for (int d = 0; d < dim; ++d) expected += double{q[i * dim + d]} * k[j * dim + d];
          ASSERT_NEAR(scores[i * 16 + j], expected, 1e-5 * dim);
          // The same key beside other keys, at position 1 of its group.
          const float* others[4] = {keys[0], keys[j], keys[0], keys[0]};
          float alone[4];
          kernels_.dots(&q[i * dim], 1, others, 4, dim, alone, 4);
          ASSERT_EQ(alone[1], scores[i * 16 + j]);
        }
      }
    }
  }
}

TEST_P(VectorKernelsTest, AccumulateIsCorrectAndIndependentOfThePosition) {
  Random random(3);
  for (int dim : {16, 32, 48, 64, 80, 256}) {
    const std::vector<float> v = RandomFloats(7 * dim, random);
    std::vector<const float*> values;
    for (int j = 0; j < 7; ++j) values.push_back(&v[j * dim]);
    const std::vector<float> weights = RandomFloats(6 * 20, random);
    const std::vector<float> rescale = RandomFloats(6, random);
    const std::vector<float> before = RandomFloats(6 * dim, random);
    for (int num_q = 1; num_q <= 6; ++num_q) {
      std::vector<float> out(before.begin(), before.begin() + num_q * dim);
      const WeightedValues weighted = {weights.data(), 20, values.data(), 7, dim};
      kernels_.accumulate(weighted, num_q, rescale.data(), out.data());
      for (int i = 0; i < num_q; ++i) {
        std::vector<float> alone(&before[i * dim], &before[i * dim] + dim);
        kernels_.accumulate({&weights[i * 20], 20, values.data(), 7, dim}, 1, &rescale[i],
                            alone.data());
        for (int d = 0; d < dim; ++d) {
          double expected = double{before[i * dim + d]} * rescale[i];
          for (int j = 0; j < 7; ++j) expected += double{weights[i * 20 + j]} * v[j * dim + d];
          ASSERT_NEAR(out[i * dim + d], expected, 1e-5);
          ASSERT_EQ(out[i * dim + d], alone[d]);
        }
      }
    }
  }
}

TEST_P(VectorKernelsTest, ExpIsAccurateToTwoUnitsAndSumExcludesPadding) {
  for (int count : {1, 3, 4, 15, 16, 17, 31, 100}) {
    std::vector<float> scores(112, NAN);  // garbage past the end
    Random random(count);
    for (int j = 0; j < count; ++j) scores[j] = static_cast<float>(random.Real(-90, 0)) + 5.0f;
    scores[0] = 5.0f;
    if (count > 2) scores[1] = -kInf;
    const std::vector<float> before = scores;
    const float sum = kernels_.exp_sum(scores.data(), count, 5.0f);
    double expected_sum = 0;
    for (int j = 0; j < count; ++j) {
      const double expected = std::exp(double{before[j] - 5.0f});
      if (before[j] - 5.0f < -87.0f) {
        EXPECT_EQ(scores[j], 0.0f);
      } else {
        EXPECT_NEAR(scores[j] / expected, 1.0, 0x1p-22) << before[j];
        expected_sum += expected;
      }
    }
    EXPECT_NEAR(sum / expected_sum, 1.0, 1e-6);
  }
}

TEST_P(VectorKernelsTest, ExpSumOfNaNIsNaN) {
  std::vector<float> scores(16, 0.0f);
  scores[3] = NAN;
  EXPECT_TRUE(std::isnan(kernels_.exp_sum(scores.data(), 16, 0.0f)));
}

TEST_P(VectorKernelsTest, MaxReadsAllScoresAndNoPadding) {
  for (int count = 1; count <= 40; ++count) {
    for (int at = 0; at < count; ++at) {
      std::vector<float> scores(48, kInf);
      std::fill(scores.begin(), scores.begin() + count, -kInf);
      scores[at] = -3.0f;
      ASSERT_EQ(kernels_.max(scores.data(), count), -3.0f) << count << " " << at;
    }
  }
}

TEST_P(VectorKernelsTest, SoftCapIsCapTimesTanh) {
  std::vector<float> scores;
  for (float s = -400; s <= 400; s += 0.37f) scores.push_back(s);
  for (float s = 1e-6f; s < 40; s *= 1.3f) scores.push_back(s);
  scores.resize(scores.size() / 16 * 16);
  const std::vector<float> before = scores;
  kernels_.soft_cap(scores.data(), static_cast<int>(scores.size()), 30.0f);
  for (size_t j = 0; j < scores.size(); ++j) {
    const double expected = 30.0 * std::tanh(before[j] / 30.0);
    ASSERT_NEAR(scores[j], expected, std::abs(expected) * 5e-7) << before[j];
  }
}

TEST_P(VectorKernelsTest, ScaleMultiplies) {
  std::vector<float> scores(16, 3.0f);
  kernels_.scale(scores.data(), 13, 0.5f);
  EXPECT_EQ(scores[12], 1.5f);
}

INSTANTIATE_TEST_SUITE_P(All, VectorKernelsTest,
                         ::testing::ValuesIn(SupportedVectorKernels().begin(),
                                             SupportedVectorKernels().end()),
                         [](const auto& info) { return info.param->name; });

}  // namespace
}  // namespace reprise
