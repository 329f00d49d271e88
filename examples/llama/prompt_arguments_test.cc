#include "examples/llama/prompt_arguments.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A command line that lives as long as the test needs it.
class CommandLine {
 public:
  explicit CommandLine(std::vector<std::string> words) : words_(std::move(words)) {
    for (std::string& word : words_) argv_.push_back(word.data());
  }
  int argc() const { return static_cast<int>(argv_.size()); }
  char** argv() { return argv_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> argv_;
};

// As Abseil's parser: flags here are all of the form --name=value.
std::vector<char*> WithoutFlags(PromptArguments& arguments) {
  std::vector<char*> rest;
  bool only_positional = false;
  for (int i = 0; i < arguments.argc(); ++i) {
    const std::string word = arguments.argv()[i];
    if (word == "--" && !only_positional) {
      only_positional = true;
    } else if (only_positional || word[0] != '-') {
      rest.push_back(arguments.argv()[i]);
    }
  }
  return rest;
}

std::vector<std::string> Texts(std::vector<std::string> words) {
  CommandLine line(std::move(words));
  PromptArguments arguments(line.argc(), line.argv());
  const auto texts = arguments.Texts(WithoutFlags(arguments));
  EXPECT_TRUE(texts.ok()) << texts.status();
  return texts.value_or(std::vector<std::string>{});
}

TEST(PromptArgumentsTest, RepeatedFlagsAndTextsKeepTheirOrder) {
  EXPECT_THAT(
      Texts({"decode", "--prompt", "a", "b", "--top_k=5", "--prompt=c", "d", "-prompt", "e"}),
      ElementsAre("a", "b", "c", "d", "e"));
}

TEST(PromptArgumentsTest, AValueMayLookLikeAFlag) {
  EXPECT_THAT(Texts({"decode", "--prompt", "--json", "--prompt=-x"}), ElementsAre("--json", "-x"));
}

TEST(PromptArgumentsTest, AnEmptyValueIsATextToo) {
  EXPECT_THAT(Texts({"decode", "--prompt", "", "--prompt="}), ElementsAre("", ""));
}

TEST(PromptArgumentsTest, OtherFlagsThatBeginAlikeAreLeftAlone) {
  CommandLine line({"decode", "--prompt_tokens=1,2", "--json"});
  PromptArguments arguments(line.argc(), line.argv());
  EXPECT_THAT(std::vector<std::string>(arguments.argv(), arguments.argv() + arguments.argc()),
              ElementsAre("decode", "--prompt_tokens=1,2", "--json"));
}

TEST(PromptArgumentsTest, AfterTwoDashesEverythingIsAText) {
  EXPECT_THAT(Texts({"decode", "--", "--prompt", "--json"}), ElementsAre("--prompt", "--json"));
}

TEST(PromptArgumentsTest, WithoutPromptsThereAreNone) {
  EXPECT_THAT(Texts({"decode", "--json=true"}), IsEmpty());
  EXPECT_THAT(Texts({}), IsEmpty());
}

TEST(PromptArgumentsTest, AFlagWithoutAValueIsRefused) {
  CommandLine line({"decode", "--prompt"});
  PromptArguments arguments(line.argc(), line.argv());
  EXPECT_THAT(std::string(arguments.Texts(WithoutFlags(arguments)).status().message()),
              HasSubstr("--prompt must be followed by a text"));
}

}  // namespace
}  // namespace reprise
