#include "reprise/base/check.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CheckTest, AcceptsTheBoundsOfTheRange) {
  EXPECT_TRUE(CheckAtLeast("n", 0, 0).ok());
  EXPECT_TRUE(CheckAtMost("n", 7, 7).ok());
  EXPECT_TRUE(CheckBetween("n", 1, 1, 64).ok());
  EXPECT_TRUE(CheckBetween("n", 64, 1, 64).ok());
  EXPECT_TRUE(CheckEqual("n", -3, -3).ok());
  EXPECT_TRUE(CheckAtLeast("n", std::numeric_limits<int64_t>::max(), INT64_MAX).ok());
}

TEST(CheckTest, ErrorsContainNameExpectedAndActualValue) {
  EXPECT_EQ(Message(CheckAtLeast("num_rows", -1, 0)), "num_rows: expected at least 0, got -1");
  EXPECT_EQ(Message(CheckAtMost("sizes", 9, 8)), "sizes: expected at most 8, got 9");
  EXPECT_EQ(Message(CheckBetween("num_nodes", 65, 1, 64)), "num_nodes: expected 1 to 64, got 65");
  EXPECT_EQ(Message(CheckBetween("num_nodes", 0, 1, 64)), "num_nodes: expected 1 to 64, got 0");
  EXPECT_EQ(Message(CheckEqual("world", 2, 1)), "world: expected 1, got 2");
  EXPECT_EQ(Message(CheckAtLeast("n", std::numeric_limits<int64_t>::min(), 0)),
            "n: expected at least 0, got -9223372036854775808");
}

TEST(CheckTest, NamesNeedNoTerminatingZero) {
  const std::string_view name = std::string_view("num_rows and more").substr(0, 8);
  EXPECT_EQ(Message(CheckAtLeast(name, -1, 0)), "num_rows: expected at least 0, got -1");
}

TEST(CheckTest, OnlyPositiveFiniteNumbersPass) {
  EXPECT_TRUE(CheckPositive("scale", std::numeric_limits<float>::denorm_min()).ok());
  EXPECT_TRUE(CheckPositive("scale", std::numeric_limits<float>::max()).ok());
  for (float bad : {0.0f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN}) {
    EXPECT_THAT(Message(CheckPositive("scale", bad)),
                testing::StartsWith("scale: expected a positive, finite number, got "));
  }
}

TEST(CheckTest, RejectsNullArray) {
  const int cell = 0;
  EXPECT_TRUE(CheckGiven("seq_lens", &cell).ok());
  EXPECT_EQ(Message(CheckGiven("seq_lens", nullptr)), "seq_lens: expected an array, got none");
}

}  // namespace
}  // namespace reprise
