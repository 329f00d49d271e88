#include "reprise/cache/blocks/lazy_array.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(LazyArrayTest, BeginsWithZeros) {
  LazyArray<int32_t> array = LazyArray<int32_t>::Create(1000);
  ASSERT_FALSE(array.empty());
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(array.data()[i], 0);
  array.data()[999] = 7;
  const LazyArray<int32_t> moved = std::move(array);
  EXPECT_EQ(moved.data()[999], 7);
}

TEST(LazyArrayTest, IsEmptyWithoutMemory) {
  EXPECT_TRUE(LazyArray<int32_t>().empty());
  EXPECT_TRUE(LazyArray<int32_t>::Create(0).empty());
  EXPECT_TRUE(LazyArray<int32_t>::Create(-5).empty());
  EXPECT_TRUE(LazyArray<int64_t>::Create(std::numeric_limits<int64_t>::max()).empty());
}

}  // namespace
}  // namespace reprise
