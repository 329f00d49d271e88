// The command over pipes and over a pseudo-terminal, with the project's model.

#include "examples/decode/chat/chat.h"

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "examples/decode/chat/has_terminals.h"
#include "examples/decode/model_copy.h"
#include "examples/decode/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/paths.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

DecodeOptions ChatOptions() {
  DecodeOptions options;
  options.command = DecodeCommand::kChat;
  options.dtype = DType::kFloat32;
  options.device = DeviceChoice::kCpu;
  options.engine.runner.max_seq_len = 512;
  return options;
}

struct Output {
  absl::Status status;
  std::string out;
  std::string err;
};

Output Chat(const std::string& input, const DecodeOptions& options = ChatOptions()) {
  std::array<int, 2> ends;
  EXPECT_EQ(pipe(ends.data()), 0);
  EXPECT_EQ(write(ends[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
  close(ends[1]);
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunChat(options, {.in = ends[0], .out = out, .err = err}, {});
  close(ends[0]);
  return {status, out.str(), err.str()};
}

// As `decode run` has it, with a line break behind it.
std::string RunText(const std::string& prompt) {
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode(
      {.prompts = {{.content = prompt}}, .dtype = DType::kFloat32, .device = DeviceChoice::kCpu},
      {.out = out, .err = err});
  EXPECT_TRUE(status.ok()) << status;
  return out.str();
}

TEST(ChatTest, ALineIsAnsweredAsRunContinuesIt) {
  const Output output = Chat("zero-content\n\n/help\n");
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.out, RunText("zero-content\n"));
  EXPECT_THAT(output.err, HasSubstr("/clear begins another conversation"));
}

TEST(ChatTest, AnAnswerEndsBeforeItsStop) {
  DecodeOptions options = ChatOptions();
  options.stops.texts = {"j.\nSy"};
  EXPECT_EQ(Chat("zero-content\n", options).out, "ad\n");
  options.stops.is_included = true;
  EXPECT_EQ(Chat("zero-content\n", options).out, "adj.\nSy\n");
  options.stops.texts = {"adj.\nSyn. {content-free}. no such text"};  // held back until the end
  EXPECT_EQ(Chat("zero-content\n", options).out, RunText("zero-content\n"));
}

// The user's stop token ends no turn: the end-of-text token is appended to it, as to any answer
// that the model has not ended.
TEST(ChatTest, AStopTokenEndsAnAnswerWithoutEndingItsTurn) {
  DecodeOptions options = ChatOptions();
  options.shows_stats = true;
  options.max_new_tokens = 1;
  const std::string limited = Chat("foo\nfoo\n", options).err;
  options.max_new_tokens = 8;
  options.stop_tokens = {16};  // "/", the first token of the answer
  const std::string stopped = Chat("foo\nfoo\n", options).err;
  const auto prompt_tokens = [](const std::string& err) {
    return err.substr(err.rfind(" of "), err.rfind(" prompt tokens") - err.rfind(" of "));
  };
  EXPECT_EQ(prompt_tokens(stopped), prompt_tokens(limited));
}

TEST(ChatTest, TurnsAreFoundInTheCacheAndAClearedConversationIsNot) {
  DecodeOptions options = ChatOptions();
  options.shows_stats = true;
  options.engine.runner.cache.block_size = 4;
  const Output output = Chat("hack value\nfoo\n/clear\nfoo\n", options);
  ASSERT_TRUE(output.status.ok()) << output.status;
  std::vector<std::array<int, 3>> stats;  // tokens, cached, prompt
  const std::vector<std::string> lines = absl::StrSplit(output.err, '\n');
  for (const std::string& line : lines) {
    std::array<int, 3> numbers;
    const size_t begin = line.find('[');
    if (begin == std::string::npos) continue;
    double seconds;
    double speed;
    ASSERT_EQ(std::sscanf(line.c_str() + begin,
                          "[%d tokens in %lf s, %lf tokens/s; %d of %d prompt tokens from the",
                          &numbers[0], &seconds, &speed, &numbers[1], &numbers[2]),
              5)
        << line;
    stats.push_back(numbers);
  }
  ASSERT_THAT(stats, SizeIs(3));
  EXPECT_EQ(stats[0][1], 0);
  // All whole blocks of the first turn, but for the key of its last token, which is computed next.
  const int first_turn = stats[0][2] + stats[0][0];
  EXPECT_GE(stats[1][1], (first_turn - 1) / 4 * 4);
  EXPECT_GT(stats[1][1], 0);
  EXPECT_GT(stats[1][2], first_turn);
  EXPECT_LT(stats[2][2], stats[1][2]);
}

TEST(ChatTest, ATurnThatCannotBeAnsweredChangesNothing) {
  DecodeOptions options = ChatOptions();
  options.engine.runner.max_seq_len = 64;
  options.max_new_tokens = 8;
  const std::string too_long(4000, 'x');
  const Output output = Chat(too_long + "\n\xff\nzero-content\n", options);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_THAT(output.err, HasSubstr("the conversation is too long: expected fewer than 64 tokens"));
  EXPECT_THAT(output.err, HasSubstr("UTF-8"));
  EXPECT_THAT(output.out, testing::StartsWith("\n\nadj.\nSyn."));
}

TEST(ChatTest, ATemplateAndASystemTextAreWhatTheModelReads) {
  DecodeOptions options = ChatOptions();
  options.shows_stats = true;
  options.max_new_tokens = 4;
  const std::string plain = Chat("foo\n", options).err;
  options.chat_template = "chatml";
  options.system = "Be brief.";
  const Output output = Chat("foo\n", options);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_THAT(plain, HasSubstr("of 3 prompt tokens"));
  EXPECT_THAT(output.err, Not(HasSubstr("of 3 prompt tokens")));
}

TEST(ChatTest, WithoutATemplateATextBeginsAsInRun) {
  DecodeOptions options = ChatOptions();
  options.model = CopyDefaultModel("chat_without_bos");
  options.shows_stats = true;
  options.max_new_tokens = 4;
  EXPECT_THAT(Chat("foo\n", options).err, HasSubstr("of 3 prompt tokens"));
  // The bos_token of tokenizer_config.json is still there, but the tokenizer does not put it before
  // a text.
  const std::string path = *options.model + "/tokenizer.json";
  nlohmann::json tokenizer = nlohmann::json::parse(ReadWholeFile(path));
  tokenizer["post_processor"] = nullptr;
  WriteWholeFile(path, tokenizer.dump());
  EXPECT_THAT(Chat("foo\n", options).err, HasSubstr("of 2 prompt tokens"));
}

TEST(ChatTest, WhatKeepsItFromStartingIsSaid) {
  DecodeOptions options = ChatOptions();
  options.chat_template = "alpaca";
  EXPECT_THAT(std::string(Chat("", options).status.message()), HasSubstr("--template: expected"));
  options = ChatOptions();
  options.model = CopyDefaultModel("chat_without_tokenizer");
  std::filesystem::remove(*options.model + "/tokenizer.json");
  EXPECT_THAT(std::string(Chat("", options).status.message()), HasSubstr("no tokenizer.json"));
}

// The program on a terminal of its own.
class Terminal {
 public:
  // `term`: the variable TERM. Lines are edited where it is not "dumb".
  explicit Terminal(const std::vector<std::string>& flags, const char* term = "dumb") {
    const auto program = FindData("examples/decode/decode", DataRoots());
    EXPECT_TRUE(program.has_value());
    std::vector<std::string> words = {std::filesystem::absolute(*program).string(), "chat"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    child_ = forkpty(&descriptor_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      setenv("TERM", term, 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    EXPECT_GT(child_, 0);
  }
  ~Terminal() { close(descriptor_); }

  void Type(const std::string& keys) {
    EXPECT_EQ(write(descriptor_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads up to `text`, for two minutes at most.
  bool ShowsSoon(const std::string& text) {
    std::array<char, 4096> buffer;
    size_t begin;
    while ((begin = shown_.find(text)) == std::string::npos) {
      pollfd waited = {.fd = descriptor_, .events = POLLIN, .revents = 0};
      if (poll(&waited, 1, 120'000) <= 0) return false;
      const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
      if (count <= 0) return false;
      shown_.append(buffer.data(), static_cast<size_t>(count));
    }
    shown_.erase(0, begin + text.size());
    return true;
  }
  const std::string& shown() const { return shown_; }
  // The program's exit status.
  int Await() {
    int status = 0;
    std::array<char, 4096> buffer;
    while (read(descriptor_, buffer.data(), buffer.size()) > 0) {
    }
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int descriptor_ = -1;
  pid_t child_ = -1;
  std::string shown_;  // not read up to yet
};

TEST(ChatTest, OnATerminalCtrlCEndsAnAnswerAndCtrlDTheProgram) {
  if (!HasTerminals()) GTEST_SKIP() << kNoTerminals;
  Terminal terminal({"--device=cpu", "--dtype=float32", "--ignore_eos", "--max_new_tokens=1800"});
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("foo\n");
  ASSERT_TRUE(terminal.ShowsSoon("foo\r\n")) << terminal.shown();  // the echo
  ASSERT_TRUE(terminal.ShowsSoon(" ")) << terminal.shown();        // of the answer
  terminal.Type("\x03");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("half a line\x03");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("/help\n");
  ASSERT_TRUE(terminal.ShowsSoon("/clear begins")) << terminal.shown();
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("\x04");
  EXPECT_EQ(terminal.Await(), 0);
}

TEST(ChatTest, OnATerminalLinesAreEdited) {
  if (!HasTerminals()) GTEST_SKIP() << kNoTerminals;
  Terminal terminal({"--device=cpu", "--dtype=float32"}, "xterm");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("ero-content\x01z\r");  // Ctrl-A goes to the beginning
  ASSERT_TRUE(terminal.ShowsSoon("adj.\r\nSyn. {content-free}.")) << terminal.shown();
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("half a line\x03");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("/help\r");
  ASSERT_TRUE(terminal.ShowsSoon("/clear begins")) << terminal.shown();
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("\x04");
  EXPECT_EQ(terminal.Await(), 0);
}

TEST(ChatTest, RanksAnswerAsOneDoesAndCtrlCEndsAnAnswerOfAll) {
  if (!HasTerminals()) GTEST_SKIP() << kNoTerminals;
  Terminal terminal(
      {"--device=cpu", "--dtype=float32", "--ranks=2", "--ignore_eos", "--max_new_tokens=1800"});
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("zero-content\n");
  ASSERT_TRUE(terminal.ShowsSoon("adj.\r\nSyn. {content-free}.")) << terminal.shown();
  terminal.Type("\x03");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("half a line\x03");
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("/help\n");
  ASSERT_TRUE(terminal.ShowsSoon("/clear begins")) << terminal.shown();
  ASSERT_TRUE(terminal.ShowsSoon("> ")) << terminal.shown();
  terminal.Type("\x04");
  EXPECT_EQ(terminal.Await(), 0);
}

// Longer than the ranks wait for one another, with a line editor and without.
TEST(ChatTest, RanksWaitForAUserWhoThinks) {
  if (!HasTerminals()) GTEST_SKIP() << kNoTerminals;
  const std::vector<std::string> flags = {"--device=cpu", "--dtype=float32", "--ranks=2",
                                          "--rank_timeout=3"};
  Terminal plain(flags);
  Terminal edited(flags, "xterm");
  ASSERT_TRUE(plain.ShowsSoon("> ")) << plain.shown();
  ASSERT_TRUE(edited.ShowsSoon("> ")) << edited.shown();
  absl::SleepFor(absl::Seconds(8));
  for (Terminal* const terminal : {&plain, &edited}) {
    terminal->Type("zero-content\r");
    ASSERT_TRUE(terminal->ShowsSoon("adj.\r\nSyn. {content-free}.")) << terminal->shown();
    ASSERT_TRUE(terminal->ShowsSoon("> ")) << terminal->shown();
    terminal->Type("\x04");
    EXPECT_EQ(terminal->Await(), 0);
  }
}

}  // namespace
}  // namespace reprise
