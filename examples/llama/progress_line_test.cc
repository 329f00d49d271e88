#include "examples/llama/progress_line.h"

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

}  // namespace
}  // namespace reprise
