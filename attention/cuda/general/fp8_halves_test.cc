#include "reprise/attention/cuda/general/fp8_halves.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace reprise {
namespace {

// Reference conversions, by the definitions of the formats.
double E4M3(int bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return bits & 128 ? -magnitude : magnitude;
}

double Float16(int bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa == 0 ? INFINITY : NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 15 - 10);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Fp8HalvesTest, ConvertsEveryPairOfValuesExactly) {
  for (uint32_t low = 0; low < 256; ++low) {
    for (uint32_t high = 0; high < 256; ++high) {
      const uint32_t other_bytes = 0x00a50000u | (low * 37 & 255);
      const uint32_t halves = ScaledHalvesOfE4M3(high << 24 | low << 8 | other_bytes);
      const double expected[2] = {E4M3(low), E4M3(high)};
      const double got[2] = {256 * Float16(halves & 0xffff), 256 * Float16(halves >> 16)};
      for (int i = 0; i < 2; ++i) {
        if (std::isnan(expected[i])) {
          EXPECT_TRUE(std::isnan(got[i])) << low << " " << high;
        } else {
          EXPECT_EQ(got[i], expected[i]) << low << " " << high;
          EXPECT_EQ(std::signbit(got[i]), std::signbit(expected[i])) << low << " " << high;
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise
