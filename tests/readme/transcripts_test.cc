// The transcripts in the pages of the program: their commands are run, and must show what the pages
// show.
//
// A transcript is a block ```console. A line "$ command" is given to a shell, with `decode` and the
// CPU as the device; the lines below it, up to the next command, are its output. A number with a
// decimal point stands for any such number, and blanks for any number of blanks.

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "examples/decode/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/hf/paths.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

struct Exchange {
  std::string command = {};
  std::string output = {};
};

std::vector<Exchange> ExchangesOf(const std::string& page) {
  std::ifstream file(page);
  EXPECT_TRUE(file.good()) << page;
  std::vector<Exchange> exchanges;
  bool is_transcript = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("```", 0) == 0) {
      is_transcript = !is_transcript && line == "```console";
    } else if (is_transcript && line.rfind("$ ", 0) == 0) {
      exchanges.push_back({.command = line.substr(2)});
    } else if (is_transcript && !exchanges.empty() && !exchanges.back().command.empty() &&
               exchanges.back().command.back() == '\\') {
      exchanges.back().command += "\n" + line;
    } else if (is_transcript) {
      EXPECT_FALSE(exchanges.empty()) << page << ": output without a command";
      if (!exchanges.empty()) exchanges.back().output += line + "\n";
    }
  }
  return exchanges;
}

std::string Normalized(const std::string& text) {
  const std::string numbers =
      std::regex_replace(text, std::regex("[0-9]+\\.[0-9]+(e[-+]?[0-9]+)?"), "#.#");
  return std::regex_replace(numbers, std::regex("  +"), " ");
}

class TranscriptsTest : public testing::TestWithParam<const char*> {};

TEST_P(TranscriptsTest, AreWhatTheProgramDoes) {
  const auto page = FindData(std::string("docs/") + GetParam(), DataRoots());
  ASSERT_TRUE(page.has_value());
  const auto program = FindData("examples/decode/decode", DataRoots());
  ASSERT_TRUE(program.has_value());
  const std::vector<Exchange> exchanges = ExchangesOf(*page);
  ASSERT_FALSE(exchanges.empty());
  // A folder of its own, where commands may write; a page may say that a socket is there.
  char folder[] = "/tmp/transcripts_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  fs::create_symlink(fs::absolute(*program), std::string(folder) + "/decode");
  const std::string path = std::string(folder) + ":" + getenv("PATH");
  for (const auto& [command, output] : exchanges) {
    SCOPED_TRACE(command);
    const SubprocessResult result = RunSubprocess(
        {"/bin/sh", "-c", command},
        {.folder = folder, .variables = {{"PATH", path}, {"CUDA_VISIBLE_DEVICES", ""}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Normalized(result.out), Normalized(output)) << result.err;
  }
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Pages, TranscriptsTest,
                         testing::Values("run.md", "chat.md", "serve.md", "bench.md",
                                         "perplexity.md"),
                         [](const auto& info) {
                           const std::string page = info.param;
                           return page.substr(0, page.find('.'));
                         });

}  // namespace
}  // namespace reprise
