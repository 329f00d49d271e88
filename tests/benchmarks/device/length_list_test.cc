#include "tests/benchmarks/device/length_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LengthListTest, RepeatsAndSingleLengthsMix) {
  EXPECT_THAT(*ParseLengths("7"), ElementsAre(7));
  EXPECT_THAT(*ParseLengths("4x3,9,0x2"), ElementsAre(4, 4, 4, 9, 0, 0));
}

TEST(LengthListTest, WhatIsNoLengthIsNamed) {
  for (const char* text : {"", "x3", "3x", "3x0", "-1", "3,,4", "4096y2", "1073741824", "1x1048576",
                           "99999999999999999999", "3x2x1"}) {
    const absl::StatusOr<std::vector<int>> lengths = ParseLengths(text);
    EXPECT_EQ(lengths.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr("4096x31,131072: got '"));
  }
}

TEST(LengthListTest, TheTextOfAListIsParsedToTheSameList) {
  for (const std::vector<int>& lengths :
       {std::vector<int>{1}, {5, 5, 5}, {131072, 4096, 4096}, {1, 2, 2, 1, 0}}) {
    EXPECT_EQ(*ParseLengths(LengthsToString(lengths)), lengths);
  }
  EXPECT_EQ(LengthsToString({4096, 4096, 7}), "4096x2,7");
}

}  // namespace
}  // namespace reprise
