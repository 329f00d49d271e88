#include "examples/decode/chat/input_lines.h"

#include <unistd.h>

#include <array>
#include <string_view>

#include "gtest/gtest.h"

namespace reprise {
namespace {

using Kind = InputLines::Kind;

class InputLinesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(pipe(ends_.data()), 0); }
  void TearDown() override {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  void Write(std::string_view text) {
    ASSERT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void EndInput() {
    close(ends_[1]);
    ends_[1] = -1;
  }

  std::array<int, 2> ends_;
  SignalEvent interrupt_{{SIGINT}};
};

TEST_F(InputLinesTest, LinesComeOneByOneAndTheLastNeedsNoEnd) {
  InputLines lines(ends_[0], interrupt_);
  Write("one\n\ntw");
  EXPECT_EQ(lines.Next().text, "one");
  EXPECT_EQ(lines.Next().text, "");
  Write("o");
  EndInput();
  const InputLines::Result last = lines.Next();
  EXPECT_EQ(last.kind, Kind::kLine);
  EXPECT_EQ(last.text, "two");
  EXPECT_EQ(lines.Next().kind, Kind::kEnd);
  EXPECT_EQ(lines.Next().kind, Kind::kEnd);
}

TEST_F(InputLinesTest, ASignalDropsTheLineThatWasBegun) {
  InputLines lines(ends_[0], interrupt_);
  Write("one\nbeg");
  EXPECT_EQ(lines.Next().text, "one");
  raise(SIGINT);
  EXPECT_EQ(lines.Next().kind, Kind::kInterrupted);
  Write("two\n");
  const InputLines::Result next = lines.Next();
  EXPECT_EQ(next.kind, Kind::kLine);
  EXPECT_EQ(next.text, "two");
}

TEST_F(InputLinesTest, WhatCannotBeReadIsTheEnd) {
  close(ends_[0]);
  InputLines lines(ends_[0], interrupt_);
  EXPECT_EQ(lines.Next().kind, Kind::kEnd);
  ends_[0] = dup(ends_[1]);
}

}  // namespace
}  // namespace reprise
