#include <fstream>
#include <string>

#include "examples/decode/prompt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string Problem(const std::string& line) {
  const auto prompt = ParsePromptLine(line);
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument) << line;
  return std::string(prompt.status().message());
}

Prompt Parsed(const std::string& line) {
  const auto prompt = ParsePromptLine(line);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt.value_or(Prompt{});
}

std::string WriteFile(const std::string& content) {
  const std::string path = testing::TempDir() + "/prompts.jsonl";
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(PromptLineTest, ReadsAStringAListAndAnObject) {
  EXPECT_EQ(Parsed(R"("hacker\n")"), (Prompt{.content = "hacker\n"}));
  EXPECT_EQ(Parsed(" [0, 17] "), (Prompt{.content = TokenList{0, 17}}));
  EXPECT_EQ(Parsed(R"({"prompt": "é", "forced_tokens": [5, 6]})"),
            (Prompt{.content = "é", .forced_tokens = {5, 6}}));
  EXPECT_EQ(Parsed(R"({"prompt_tokens": [2147483647]})"),
            (Prompt{.content = TokenList{2147483647}}));
}

TEST(PromptLineTest, AMemberThatIsNullCountsAsAbsent) {
  EXPECT_EQ(Parsed(R"({"prompt": "a", "prompt_tokens": null, "forced_tokens": null})"),
            (Prompt{.content = "a"}));
}

TEST(PromptLineTest, RefusesWhatIsNoPrompt) {
  EXPECT_THAT(Problem("hacker"), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem("\"a\" \"b\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem("\"\xff\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(Problem("17"), HasSubstr("expected a JSON string, list of token ids or object"));
  EXPECT_THAT(Problem("null"), HasSubstr("got null"));
  EXPECT_THAT(Problem("\"\""), HasSubstr("prompt is empty"));
  EXPECT_THAT(Problem("[]"), HasSubstr("prompt is empty"));
  EXPECT_THAT(Problem("{}"), HasSubstr("got neither"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "prompt_tokens": [1]})"), HasSubstr("got both"));
  EXPECT_THAT(Problem(R"({"prompt": 5})"), HasSubstr("expected a string"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "max_tokens": 3})"), HasSubstr("max_tokens"));
}

TEST(PromptLineTest, NamesTheTokenThatIsNone) {
  EXPECT_THAT(Problem("[1, -2]"), HasSubstr("prompt[1]: expected a token id"));
  EXPECT_THAT(Problem("[1.0]"), HasSubstr("got 1.0"));
  EXPECT_THAT(Problem("[2147483648]"), HasSubstr("got 2147483648"));
  EXPECT_THAT(Problem("[18446744073709551615]"), HasSubstr("prompt[0]"));
  EXPECT_THAT(Problem("[\"1\"]"), HasSubstr("prompt[0]"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "forced_tokens": [1, null]})"),
              HasSubstr("forced_tokens[1]"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "forced_tokens": 1})"), HasSubstr("forced_tokens"));
  EXPECT_THAT(Problem(R"({"prompt": "a", "forced_tokens": []})"),
              HasSubstr("forced_tokens is empty"));
}

TEST(PromptFileTest, ReadsALineAPrompt) {
  const auto prompts = ReadPromptFile(WriteFile("\"a\"\r\n[1]\n{\"prompt\": \"b\"}\n\n \n"));
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(*prompts, ElementsAre(Prompt{.content = "a"}, Prompt{.content = TokenList{1}},
                                    Prompt{.content = "b"}));
}

TEST(PromptFileTest, NamesTheFileAndTheLine) {
  const std::string path = WriteFile("\"a\"\n\"b\"\n{\"promt\": 1}\n");
  const auto prompts = ReadPromptFile(path);
  EXPECT_THAT(
      std::string(prompts.status().message()),
      AllOf(HasSubstr(path), HasSubstr("line 3"), HasSubstr("promt"), Not(HasSubstr("\n"))));
}

TEST(PromptFileTest, AnEmptyLineInTheMiddleIsNoPrompt) {
  const auto prompts = ReadPromptFile(WriteFile("\"a\"\n\n\"b\"\n"));
  EXPECT_THAT(std::string(prompts.status().message()), HasSubstr("line 2"));
}

TEST(PromptFileTest, RefusesAFileWithoutPrompts) {
  EXPECT_THAT(std::string(ReadPromptFile(WriteFile(" \n\n")).status().message()),
              HasSubstr("holds no prompt"));
  EXPECT_EQ(ReadPromptFile(testing::TempDir() + "/no such file").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace reprise
