#include "reprise/base/dtype.h"

#include <sstream>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(DTypeTest, EveryTypeParsesFromTheNameItPrints) {
  for (DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                      DType::kFp8E4M3, DType::kFp8E5M2}) {
    std::ostringstream out;
    out << dtype;
    EXPECT_EQ(ParseDType(out.str()), dtype) << out.str();
  }
}

TEST(DTypeTest, Fp8WithoutAFormatIsE4M3) {
  EXPECT_EQ(ParseDType("fp8"), DType::kFp8E4M3);
  EXPECT_TRUE(IsFp8(DType::kFp8E5M2));
  EXPECT_FALSE(IsFp8(DType::kBFloat16));
}

TEST(DTypeTest, NamesAreExact) {
  EXPECT_EQ(ParseDType("BF16"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(ParseDType("auto"), std::nullopt);  // not a type: the caller must resolve "auto"
}

TEST(DTypeTest, SizesAreBytes) {
  EXPECT_EQ(SizeOf(DType::kFloat64), 8);
  EXPECT_EQ(SizeOf(DType::kFloat32), 4);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2);
  EXPECT_EQ(SizeOf(DType::kFp8E5M2), 1);
}

}  // namespace
}  // namespace reprise
