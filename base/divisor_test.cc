#include "reprise/base/divisor.h"

#include <cstdint>
#include <random>
#include <type_traits>

#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

constexpr uint32_t kLast = (uint32_t{1} << 31) - 1;

static_assert(CeilDiv(0, 5) == 0 && CeilDiv(5, 5) == 1 && CeilDiv(6, 5) == 2);
static_assert(CeilDiv(int64_t{1} << 40, 3) == 366503875926);
static_assert(std::is_same_v<decltype(CeilDiv(1, int64_t{1})), int64_t>);
static_assert(FloorDiv(5, 5) == 1 && FloorDiv(4, 5) == 0 && FloorDiv(0, 5) == 0);
static_assert(FloorDiv(-1, 5) == -1 && FloorDiv(-5, 5) == -1 && FloorDiv(-6, 5) == -2);

static_assert(NumBits(0) == 0 && NumBits(0b1011) == 3);
static_assert(NumBits(uint64_t{1} << 63) == 1 && NumBits(~uint64_t{0}) == 64);

static_assert(Divisor().Divide(7) == 7);
static_assert(Divisor(16).Divide(35) == 2);
static_assert(Divisor(72).Divide(71) == 0);

TEST(DivisorTest, DividesAllSmallNumbers) {
  for (uint32_t value = 1; value <= 600; ++value) {
    const Divisor divisor(value);
    ASSERT_EQ(divisor.value(), value);
    for (uint32_t n = 0; n < 5000; ++n) ASSERT_EQ(divisor.Divide(n), n / value) << n << value;
  }
}

// A rounded reciprocal first fails next to multiples of the divisor and at the end of the range.
TEST(DivisorTest, DividesNumbersNextToMultiplesOfTheDivisor) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t value = 1 + ((random() & kLast) >> (random() % 31));
    const Divisor divisor(value);
    const uint64_t multiple = uint64_t{random() % (kLast / value + 1)} * value;
    for (const uint64_t n : {multiple, multiple + 1, multiple + value - 1, uint64_t{kLast}}) {
      if (n > kLast) continue;
      ASSERT_EQ(divisor.Divide(static_cast<uint32_t>(n)), n / value) << n << " / " << value;
    }
  }
}

TEST(DivisorTest, TheLargestDivisorLeavesNothing) {
  const Divisor divisor(uint32_t{1} << 31);
  EXPECT_EQ(divisor.Divide(0), 0);
  EXPECT_EQ(divisor.Divide(kLast), 0);
}

}  // namespace
}  // namespace reprise
