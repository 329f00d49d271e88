#include "reprise/attention/attention_params.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(WindowLeftTest, SubtractsOneFromAWindowOfTokens) {
  EXPECT_EQ(WindowLeft(4096, WindowCount::kTokens), 4095);
  EXPECT_EQ(WindowLeft(1, WindowCount::kTokens), 0);
  EXPECT_EQ(WindowLeft(4095, WindowCount::kKeysBefore), 4095);
  EXPECT_EQ(WindowLeft(0, WindowCount::kKeysBefore), 0);
}

TEST(WindowLeftTest, ReturnsNulloptForAbsentOrNegativeWindows) {
  for (WindowCount count : {WindowCount::kTokens, WindowCount::kKeysBefore}) {
    EXPECT_EQ(WindowLeft(std::nullopt, count), std::nullopt);
    EXPECT_EQ(WindowLeft(-1, count), std::nullopt);
  }
  EXPECT_EQ(WindowLeft(0, WindowCount::kTokens), std::nullopt);
}

}  // namespace
}  // namespace reprise
