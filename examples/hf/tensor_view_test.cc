#include "reprise/hf/tensor_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(TensorViewTest, EveryTypeIsFoundByItsName) {
  for (const char* name : {"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F8_E4M3",
                           "F8_E5M2", "F16", "BF16", "F32", "F64"}) {
    const std::optional<StoredType> type = ParseStoredType(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(StoredTypeName(*type), name);
    EXPECT_THAT(StoredTypeNames(), testing::HasSubstr(name));
  }
  for (const char* name : {"", "f32", "F4", "F6_E2M3", "C64", "F32 ", "I128"}) {
    EXPECT_EQ(ParseStoredType(name), std::nullopt) << name;
  }
}

TEST(TensorViewTest, TypesToComputeWithGoThereAndBack) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                            DType::kFp8E4M3, DType::kFp8E5M2}) {
    EXPECT_EQ(ToDType(ToStoredType(dtype)), dtype);
    EXPECT_EQ(SizeOf(ToStoredType(dtype)), SizeOf(dtype));
  }
  EXPECT_EQ(ToDType(StoredType::kInt64), std::nullopt);
  EXPECT_EQ(ToDType(StoredType::kBool), std::nullopt);
  EXPECT_EQ(SizeOf(StoredType::kBool), 1);
  EXPECT_EQ(SizeOf(StoredType::kUint16), 2);
  EXPECT_EQ(SizeOf(StoredType::kInt64), 8);
}

TEST(TensorViewTest, CountsElementsWithoutOverflowing) {
  EXPECT_THAT(NumElements({}), Optional(1));
  EXPECT_THAT(NumElements({2, 3, 4}), Optional(24));
  EXPECT_THAT(NumElements({kMax, 1}), Optional(kMax));
  EXPECT_EQ(NumElements({int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);  // 2^63
  EXPECT_EQ(NumElements({kMax, 2}), std::nullopt);
  EXPECT_EQ(NumElements({-1}), std::nullopt);
}

TEST(TensorViewTest, AnEmptyTensorHasSoundSizesWhereverItsZeroStands) {
  EXPECT_THAT(NumElements({0}), Optional(0));
  EXPECT_THAT(NumElements({1, 0, kMax}), Optional(0));
  EXPECT_EQ(NumElements({0, kMax, kMax}), std::nullopt);
  EXPECT_EQ(NumElements({kMax, kMax, 0}), std::nullopt);
  EXPECT_EQ(NumElements({0, -1}), std::nullopt);
}

TEST(TensorViewTest, CopiesElementsFromAnyAddress) {
  alignas(8) char storage[17] = {};
  const int32_t values[] = {1, -2, 3};
  std::memcpy(storage + 1, values, sizeof(values));
  const TensorView tensor{StoredType::kInt32, {3}, absl::MakeConstSpan(storage + 1, 12)};
  EXPECT_FALSE(tensor.IsAligned());
  EXPECT_EQ(tensor.num_elements(), 3);
  EXPECT_THAT(*CopyElements<int32_t>(tensor), ElementsAre(1, -2, 3));
  EXPECT_TRUE((TensorView{StoredType::kInt32, {2}, absl::MakeConstSpan(storage, 8)}.IsAligned()));
}

TEST(TensorViewTest, RefusesToCopyAsAnotherType) {
  const TensorView tensor{StoredType::kBFloat16, {0}, {}};
  EXPECT_EQ(CopyElements<float>(tensor).status().message(), "element type: expected F32, got BF16");
  EXPECT_THAT(*CopyElements<double>({StoredType::kFloat64, {0}, {}}), ElementsAre());
}

TEST(TensorViewTest, ShapesPrintAsLists) {
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(ShapeString({2, 3}), "[2, 3]");
}

}  // namespace
}  // namespace reprise
