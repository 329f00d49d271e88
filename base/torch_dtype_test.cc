#include "reprise/base/torch_dtype.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(TorchDTypeTest, RoundTripKeepsTypeAndSize) {
  for (DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                      DType::kFp8E4M3, DType::kFp8E5M2}) {
    EXPECT_EQ(FromScalarType(ToScalarType(dtype)), dtype);
    EXPECT_EQ(c10::elementSize(ToScalarType(dtype)), SizeOf(dtype)) << dtype;
  }
}

TEST(TorchDTypeTest, UnsupportedTypesConvertToNullopt) {
  EXPECT_EQ(FromScalarType(at::ScalarType::Long), std::nullopt);
  EXPECT_EQ(FromScalarType(at::ScalarType::Bool), std::nullopt);
  EXPECT_EQ(FromScalarType(at::ScalarType::Undefined), std::nullopt);
  // AMD's fp8 has a different bias: reading it as kFp8E4M3 would be wrong by a factor of two.
  EXPECT_EQ(FromScalarType(at::ScalarType::Float8_e4m3fnuz), std::nullopt);
}

}  // namespace
}  // namespace reprise
