#include "examples/decode/text/stop_text.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

ModelFolder Jargon() {
  auto folder = ModelFolder::Open(*DefaultModelFolder());
  EXPECT_TRUE(folder.ok()) << folder.status();
  return *std::move(folder);
}

// How many tokens of the text there are before it ends; -1: it does not.
int EndOf(const ModelFolder& folder, const std::string& text, std::vector<std::string> stops) {
  const auto tokens = folder.tokenizer->Encode(text);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  StopText matcher(AnswerText(*folder.tokenizer, {}, {.texts = std::move(stops)}));
  for (size_t i = 0; i < tokens->size(); ++i) {
    if (matcher.Ends((*tokens)[i])) return static_cast<int>(i) + 1;
  }
  return -1;
}

TEST(StopTextTest, StopsMayBeginAndEndWithinTokens) {
  const ModelFolder folder = Jargon();
  const std::string text = "A period of three hundred and sixty-five disappointments.";
  const int num_tokens = static_cast<int>(folder.tokenizer->Encode(text)->size());
  EXPECT_EQ(EndOf(folder, text, {"no such text"}), -1);
  EXPECT_EQ(EndOf(folder, text, {text}), num_tokens);  // all of it
  EXPECT_EQ(EndOf(folder, text, {"."}), num_tokens);
  // Each beginning of the text ends in the token with its last byte.
  int last = 0;
  for (size_t size = 1; size <= text.size(); ++size) {
    const int end = EndOf(folder, text, {text.substr(0, size)});
    EXPECT_GE(end, last);
    EXPECT_LE(end, num_tokens);
    last = end;
  }
  const int in_the_middle = EndOf(folder, text, {"e hundr"});
  EXPECT_GT(in_the_middle, 0);
  EXPECT_LT(in_the_middle, num_tokens);
  EXPECT_EQ(EndOf(folder, text, {".", "e hundr", "five"}), in_the_middle);  // the first of them
}

TEST(StopTextTest, CharactersOfSeveralTokensCountWhenTheyAreWhole) {
  const ModelFolder folder = Jargon();
  const std::string text = "a \xE2\x82\xAC b";  // the euro sign
  EXPECT_GT(EndOf(folder, text, {"\xE2\x82\xAC"}), 0);
  EXPECT_EQ(EndOf(folder, text, {"\xE2\x82\xAD"}), -1);
}

}  // namespace
}  // namespace reprise
