#include "reprise/base/element_access.h"

#include <array>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double Load(DType dtype, uint16_t bits) {
  if (SizeOf(dtype) == 1) {
    const auto byte = static_cast<uint8_t>(bits);
    return LoadElement<double>(&byte, dtype, 0);
  }
  return LoadElement<double>(&bits, dtype, 0);
}

TEST(ElementAccessTest, DecodesTheLandmarksOfEachFormat) {
  EXPECT_EQ(Load(DType::kFloat16, 0x3c00), 1.0);
  EXPECT_EQ(Load(DType::kFloat16, 0xfbff), -65504.0);
  EXPECT_EQ(Load(DType::kFloat16, 0x0001), 0x1p-24);  // the smallest subnormal
  EXPECT_EQ(Load(DType::kFloat16, 0x7c00), kInf);
  EXPECT_EQ(Load(DType::kBFloat16, 0x3f80), 1.0);
  EXPECT_EQ(Load(DType::kBFloat16, 0xff80), -kInf);
  EXPECT_EQ(Load(DType::kFp8E4M3, 0x38), 1.0);
  EXPECT_EQ(Load(DType::kFp8E4M3, 0x7e), 448.0);
  EXPECT_EQ(Load(DType::kFp8E4M3, 0x01), 0x1p-9);
  EXPECT_EQ(Load(DType::kFp8E4M3, 0xc4), -3.0);  // 1.5 * 2
  EXPECT_EQ(Load(DType::kFp8E5M2, 0x3c), 1.0);
  EXPECT_EQ(Load(DType::kFp8E5M2, 0x7b), 57344.0);
  EXPECT_EQ(Load(DType::kFp8E5M2, 0x01), 0x1p-16);
  EXPECT_EQ(Load(DType::kFp8E5M2, 0x7c), kInf);
}

TEST(ElementAccessTest, AllBitsSetIsNaNInEveryFormat) {
  const std::array<uint8_t, 8> ones = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  for (DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                      DType::kFp8E4M3, DType::kFp8E5M2}) {
    EXPECT_TRUE(std::isnan(LoadElement<float>(ones.data(), dtype, 0))) << dtype;
    EXPECT_TRUE(std::isnan(RoundTo(dtype, kNaN))) << dtype;
  }
}

TEST(ElementAccessTest, EveryFiniteValueOfASmallFormatSurvivesBeingStored) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    for (int bits = 0; bits < (SizeOf(dtype) == 1 ? 256 : 65536); ++bits) {
      const double value = Load(dtype, static_cast<uint16_t>(bits));
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(RoundTo(dtype, value), value) << dtype << " " << bits;
      ASSERT_EQ(std::signbit(RoundTo(dtype, value)), std::signbit(value)) << dtype << " " << bits;
    }
  }
}

TEST(ElementAccessTest, RoundsToTheNearerNeighbourAndTiesToEven) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    const int largest = dtype == DType::kFloat16    ? 0x7bff
                        : dtype == DType::kBFloat16 ? 0x7f7f
                        : dtype == DType::kFp8E4M3  ? 0x7e
                                                    : 0x7b;
    for (int bits = 0; bits < largest; ++bits) {
      const double low = Load(dtype, static_cast<uint16_t>(bits));
      const double high = Load(dtype, static_cast<uint16_t>(bits + 1));
      const double middle = low + (high - low) / 2;
      ASSERT_EQ(RoundTo(dtype, middle), bits % 2 == 0 ? low : high) << dtype << " " << bits;
      ASSERT_EQ(RoundTo(dtype, std::nextafter(middle, 0)), low) << dtype << " " << bits;
      ASSERT_EQ(RoundTo(dtype, -std::nextafter(middle, kInf)), -high) << dtype << " " << bits;
    }
  }
}

TEST(ElementAccessTest, OverflowSaturatesInFp8AndIsInfiniteInOtherTypes) {
  EXPECT_EQ(RoundTo(DType::kFp8E4M3, 1e9), 448.0);
  EXPECT_EQ(RoundTo(DType::kFp8E4M3, -kInf), -448.0);
  EXPECT_EQ(RoundTo(DType::kFp8E5M2, 1e300), 57344.0);
  EXPECT_EQ(RoundTo(DType::kFloat16, 65520.0), kInf);  // halfway to 65536
  EXPECT_EQ(RoundTo(DType::kFloat16, 65519.0), 65504.0);
  EXPECT_EQ(RoundTo(DType::kBFloat16, -1e300), -kInf);
}

TEST(ElementAccessTest, IndexCountsElements) {
  std::array<float, 3> memory = {1, 2, 3};
  StoreElement(memory.data(), DType::kFloat32, 2, 5.5);
  EXPECT_EQ(LoadElement<double>(memory.data(), DType::kFloat32, 2), 5.5);
  EXPECT_EQ(memory[1], 2.0f);
}

}  // namespace
}  // namespace reprise
