#include "examples/decode/progress_line.h"

#include <sstream>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(ProgressLineTest, EachTextReplacesTheOneBefore) {
  std::ostringstream out;
  ProgressLine progress(out, ProgressLine::Mode::kShown);
  progress.Show("a");
  progress.Show("b");
  EXPECT_EQ(out.str(), "\r\x1b[Ka\r\x1b[Kb");
  progress.Clear();
  progress.Clear();  // nothing is left to clear
  EXPECT_EQ(out.str(), "\r\x1b[Ka\r\x1b[Kb\r\x1b[K");
}

TEST(ProgressLineTest, NothingIsLeftWhenItGoes) {
  std::ostringstream out;
  { ProgressLine(out, ProgressLine::Mode::kShown).Show("a"); }
  EXPECT_EQ(out.str(), "\r\x1b[Ka\r\x1b[K");
}

TEST(ProgressLineTest, FilesSeeNothingOfIt) {
  std::ostringstream out;
  {
    ProgressLine progress(out, ProgressLine::Mode::kSilent);
    progress.Show("a");
  }
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressLineTest, WhatIsNoTerminalIsNone) {
  EXPECT_EQ(ProgressLine::ForTerminal(-1), ProgressLine::Mode::kSilent);
}

TEST(LoadingBarTest, SaysHowMuchOfHowMuchAndHowFast) {
  EXPECT_EQ(LoadingBar(8'030'000'000, 16'060'000'000, 2),
            "loading weights [##########..........] 8.0 of 16.1 GB, 4.0 GB/s");
}

TEST(LoadingBarTest, BeginsEmptyWithoutASpeedAndEndsFull) {
  EXPECT_EQ(LoadingBar(0, 1'000'000'000, 0),
            "loading weights [....................] 0.0 of 1.0 GB");
  EXPECT_EQ(LoadingBar(1'000'000'000, 1'000'000'000, 0.01),
            "loading weights [####################] 1.0 of 1.0 GB");
}

TEST(LoadingBarTest, NothingToReadIsDone) {
  EXPECT_EQ(LoadingBar(0, 0, 1), "loading weights [####################] 0.0 of 0.0 GB, 0.0 GB/s");
}

}  // namespace
}  // namespace reprise
