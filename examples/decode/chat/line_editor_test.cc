// On a pseudo-terminal, with keys that are typed before they are asked for.

#include "examples/decode/chat/line_editor.h"

#include <pty.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "examples/decode/chat/has_terminals.h"
#include "gtest/gtest.h"

// libtinfo keeps 8 bytes of each terminal that libedit asks it for.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:_nc_trim_sgr0"; }

namespace reprise {
namespace {

using Kind = InputLines::Kind;

class LineEditorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasTerminals()) GTEST_SKIP() << kNoTerminals;
    setenv("TERM", "xterm", 1);
    setenv("HOME", testing::TempDir().c_str(), 1);  // no ~/.editrc
    ASSERT_EQ(openpty(&keys_, &terminal_, nullptr, nullptr, nullptr), 0);
    ASSERT_EQ(tcgetattr(terminal_, &raw_), 0);
    cfmakeraw(&raw_);
    out_ = fdopen(dup(terminal_), "w");
    editor_ = LineEditor::Create(terminal_, out_, interrupt_, {});
#ifndef REPRISE_WITH_LIBEDIT
    EXPECT_EQ(editor_, nullptr);
    GTEST_SKIP() << "built without libedit";
#endif
    ASSERT_NE(editor_, nullptr);
  }
  void TearDown() override {
    editor_.reset();
    if (out_ == nullptr) return;
    std::fclose(out_);
    close(keys_);
    close(terminal_);
  }
  void Type(const std::string& keys) {
    // Between lines the terminal would edit them itself, or not, by when they reach it.
    ASSERT_EQ(tcsetattr(terminal_, TCSANOW, &raw_), 0);
    ASSERT_EQ(write(keys_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  std::string LineOf(const std::string& keys) {
    Type(keys);
    const InputLines::Result line = editor_->Next();
    EXPECT_EQ(line.kind, Kind::kLine);
    return line.text;
  }

  int keys_ = -1;
  int terminal_ = -1;
  termios raw_ = {};
  std::FILE* out_ = nullptr;
  SignalEvent interrupt_{{SIGINT}};
  std::unique_ptr<LineEditor> editor_;
};

TEST_F(LineEditorTest, KeysEditTheLine) {
  EXPECT_EQ(LineOf("helo\x1b[D\x1b[Dl\r"), "hello");
  EXPECT_EQ(LineOf("world\x01hello \x05!\r"), "hello world!");  // Ctrl-A, Ctrl-E
  EXPECT_EQ(LineOf("one two\x17three\r"), "one three");         // Ctrl-W
  EXPECT_EQ(LineOf("abc\x7f\x7f\r"), "a");
  EXPECT_EQ(LineOf("\r"), "");
}

TEST_F(LineEditorTest, EarlierLinesComeBack) {
  EXPECT_EQ(LineOf("first\r"), "first");
  EXPECT_EQ(LineOf("second\r"), "second");
  EXPECT_EQ(LineOf("\x1b[A\x1b[A!\r"), "first!");
  EXPECT_EQ(LineOf("\x1b[A\x1b[A\x1b[A\x1b[B\r"), "second");
}

TEST_F(LineEditorTest, TextIsUtf8) {
  EXPECT_EQ(LineOf("na\xc3\xafve \xe6\xbc\xa2\xf0\x9f\x99\x82\x7f\r"), "na\xc3\xafve \xe6\xbc\xa2");
  EXPECT_EQ(LineOf("\xff\xc3"
                   "a\xe0\x80\x80"
                   "b\r"),
            "\xef\xbf\xbd\xef\xbf\xbd"
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(LineOf("cut \xf0\x9f\r"), "cut \xef\xbf\xbd");
}

TEST_F(LineEditorTest, ASignalDropsTheLineAndCtrlDIsTheEnd) {
  raise(SIGINT);
  EXPECT_EQ(editor_->Next().kind, Kind::kInterrupted);
  EXPECT_EQ(LineOf("after\r"), "after");
  EXPECT_EQ(LineOf("x\x04\x01\x04y\r"), "y");  // within a line it deletes
  Type("\x04");
  EXPECT_EQ(editor_->Next().kind, Kind::kEnd);
  // As the terminal keeps it where it was typed between lines.
  Type(std::string(1, '\0'));
  EXPECT_EQ(editor_->Next().kind, Kind::kEnd);
}

TEST_F(LineEditorTest, NoEditorWithoutATerminal) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(LineEditor::Create(ends[0], out_, interrupt_, {}), nullptr);
  close(ends[0]);
  close(ends[1]);
  setenv("TERM", "dumb", 1);
  EXPECT_EQ(LineEditor::Create(terminal_, out_, interrupt_, {}), nullptr);
  unsetenv("TERM");
  EXPECT_EQ(LineEditor::Create(terminal_, out_, interrupt_, {}), nullptr);
}

}  // namespace
}  // namespace reprise
