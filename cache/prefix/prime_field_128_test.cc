#include "reprise/cache/prefix/prime_field_128.h"

#include <array>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using Halves = std::pair<uint64_t, uint64_t>;  // low, high

Halves HalvesOf(PrimeField128 value) { return {value.low(), value.high()}; }

// A number of up to 288 bits in 32-bit digits, with plain schoolbook arithmetic.
using Digits = std::array<uint64_t, 9>;

Digits DigitsOf(Halves halves) {
  return {halves.first & 0xFFFFFFFF, halves.first >> 32, halves.second & 0xFFFFFFFF,
          halves.second >> 32};
}

bool IsLess(const Digits& a, const Digits& b) {
  for (int i = 8; i >= 0; --i) {
    if (a[i] != b[i]) return a[i] < b[i];
  }
  return false;
}

Digits Doubled(Digits a) {
  uint64_t carry = 0;
  for (uint64_t& digit : a) {
    const uint64_t sum = 2 * digit + carry;
    digit = sum & 0xFFFFFFFF;
    carry = sum >> 32;
  }
  return a;
}

Digits Sum(Digits a, const Digits& b) {
  uint64_t carry = 0;
  for (int i = 0; i < 9; ++i) {
    const uint64_t sum = a[i] + b[i] + carry;
    a[i] = sum & 0xFFFFFFFF;
    carry = sum >> 32;
  }
  return a;
}

Digits Difference(Digits a, const Digits& b) {
  int64_t borrow = 0;
  for (int i = 0; i < 9; ++i) {
    int64_t difference = static_cast<int64_t>(a[i]) - static_cast<int64_t>(b[i]) - borrow;
    borrow = difference < 0;
    if (borrow) difference += int64_t{1} << 32;
    a[i] = static_cast<uint64_t>(difference);
  }
  return a;
}

// 2^128 - 159.
const Digits kPrime = {0xFFFFFFFF - 158, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF};

Halves Reduced(Digits a) {
  while (!IsLess(a, kPrime)) a = Difference(a, kPrime);
  return {a[0] | a[1] << 32, a[2] | a[3] << 32};
}

// Multiplies by doubling and adding, reducing at every step.
Halves SlowProduct(Halves a, Halves b) {
  Digits product = {};
  const Digits factor = DigitsOf(a);
  for (int bit = 127; bit >= 0; --bit) {
    product = DigitsOf(Reduced(Doubled(product)));
    const uint64_t half = bit >= 64 ? b.second : b.first;
    if (half >> (bit % 64) & 1) product = DigitsOf(Reduced(Sum(product, factor)));
  }
  return Reduced(product);
}

std::vector<Halves> HostileValues() {
  const uint64_t kMax = ~uint64_t{0};
  return {{0, 0},
          {1, 0},
          {158, 0},
          {159, 0},
          {kMax, 0},
          {0, 1},
          {kMax, kMax},
          {kMax - 158, kMax},
          {kMax - 157, kMax},
          {kMax - 159, kMax},
          {0, uint64_t{1} << 63},
          {kMax, kMax >> 1},
          {0, kMax},
          {kMax - 160, kMax}};
}

TEST(PrimeField128Test, MatchesSchoolbookArithmeticAtTheBounds) {
  for (const Halves& a : HostileValues()) {
    for (const Halves& b : HostileValues()) {
      SCOPED_TRACE(testing::Message()
                   << a.second << ":" << a.first << ", " << b.second << ":" << b.first);
      const PrimeField128 x = PrimeField128::FromHalves(a.first, a.second);
      const PrimeField128 y = PrimeField128::FromHalves(b.first, b.second);
      EXPECT_EQ(HalvesOf(x + y), Reduced(Sum(DigitsOf(a), DigitsOf(b))));
      EXPECT_EQ(HalvesOf(x * y), SlowProduct(a, b));
    }
  }
}

TEST(PrimeField128Test, MatchesSchoolbookArithmeticOnRandomValues) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto value = [&]() -> Halves {
    // Halves are often all ones or all zeros, which causes carries.
    const auto half = [&] { return random() % 4 == 0 ? (random() % 2 ? ~0ull : 0ull) : random(); };
    return {half(), half()};
  };
  for (int i = 0; i < 3000; ++i) {
    const Halves a = value(), b = value();
    const PrimeField128 x = PrimeField128::FromHalves(a.first, a.second);
    const PrimeField128 y = PrimeField128::FromHalves(b.first, b.second);
    ASSERT_EQ(HalvesOf(x + y), Reduced(Sum(DigitsOf(a), DigitsOf(b))));
    ASSERT_EQ(HalvesOf(x * y), SlowProduct(a, b));
    ASSERT_EQ(HalvesOf((x + y) * x), HalvesOf(x * x + y * x));
  }
}

TEST(PrimeField128Test, EveryNumberHasOneCanonicalForm) {
  const uint64_t kMax = ~uint64_t{0};
  // 2^128 - 1 is congruent to 158.
  EXPECT_EQ(HalvesOf(PrimeField128::FromHalves(kMax, kMax)), Halves(158, 0));
  EXPECT_EQ(PrimeField128::FromHalves(kMax, kMax), PrimeField128::FromHalves(158, 0));
  EXPECT_EQ(PrimeField128::FromHalves(kMax - 158, kMax), PrimeField128());
}

// Fermat: x^(p - 1) is 1 for every x except 0 if p is prime. Wrong carries would violate it.
TEST(PrimeField128Test, FermatsTheoremHolds) {
  for (const uint64_t number : {2ull, 3ull, 0x123456789ABCDEFull}) {
    const PrimeField128 x = PrimeField128::FromHalves(number, number >> 7);
    PrimeField128 power = PrimeField128::FromHalves(1, 0);
    for (int bit = 127; bit >= 0; --bit) {
      power = power * power;
      const uint64_t half = bit >= 64 ? ~uint64_t{0} : ~uint64_t{0} - 159;  // p - 1
      if (half >> (bit % 64) & 1) power = power * x;
    }
    EXPECT_EQ(HalvesOf(power), Halves(1, 0));
  }
}

}  // namespace
}  // namespace reprise
