// Texts of answers, by tokenizers of the published kinds. Expected texts are those of StreamedText(),
// cut at the stop.

#include "examples/decode/text/answer_text.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/decode/text/stop_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/streamed_text.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"

namespace reprise {
namespace {

using testing::ElementsAre;

Tokenizer TokenizerOf(const char* name) {
  const auto file = ReadJsonFile(absl::StrCat("examples/hf/tokenizer/testdata/", name, ".json"));
  EXPECT_TRUE(file.ok()) << file.status();
  return *Tokenizer::Create(*ParseTokenizerJson((*file)["tokenizer"]));
}

const Tokenizer& Llama2() {
  static const auto& tokenizer = *new Tokenizer(TokenizerOf("llama2"));
  return tokenizer;
}
const Tokenizer& Llama3() {
  static const auto& tokenizer = *new Tokenizer(TokenizerOf("llama3"));
  return tokenizer;
}

// The tokens with these contents.
std::vector<int32_t> Ids(const Tokenizer& tokenizer, const std::vector<std::string>& contents) {
  std::vector<int32_t> ids;
  for (const std::string& content : contents) {
    const std::optional<int32_t> id = tokenizer.FindToken(content);
    EXPECT_TRUE(id.has_value()) << content;
    ids.push_back(id.value_or(0));
  }
  return ids;
}

// The text of each token, and last that of Finish().
std::vector<std::string> Stream(AnswerText text, const std::vector<int32_t>& tokens) {
  std::vector<std::string> texts;
  for (const int32_t token : tokens) texts.push_back(text.Push(token));
  texts.push_back(text.Finish());
  return texts;
}

// The number of tokens until a stop; -1: there is none.
int EndOf(AnswerText text, const std::vector<int32_t>& tokens) {
  StopText matcher(std::move(text));
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (matcher.Ends(tokens[i])) return static_cast<int>(i) + 1;
  }
  return -1;
}

TEST(AnswerTextTest, TextFollowsThePrompt) {
  const Request request = {.prompt = *Llama2().Encode("The lazy dog")};
  const std::vector<int32_t> tokens = Ids(Llama2(), {"▁and", "▁the"});
  EXPECT_THAT(Stream({Llama2(), request, {}}, tokens), ElementsAre(" and", " the", ""));
  // Without a prompt, the text begins with the answer.
  EXPECT_THAT(Stream({Llama2(), Request(), {}}, tokens), ElementsAre("and", " the", ""));
  EXPECT_THAT(Stream({Llama2(), {.prompt = Ids(Llama2(), {"<s>"})}, {}}, tokens),
              ElementsAre("and", " the", ""));
}

TEST(AnswerTextTest, StopMayBeCharactersOfByteTokens) {
  const Request request = {.prompt = *Llama2().Encode("The lazy dog")};
  const std::vector<int32_t> tokens = Ids(Llama2(), {"▁and", "▁the", "<0x0A>", "▁fox"});
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"\n"}}}, tokens), 3);
  EXPECT_THAT(Stream({Llama2(), request, {.texts = {"\n"}}}, tokens),
              ElementsAre(" and", " the", "", "", ""));
  EXPECT_THAT(Stream({Llama2(), request, {.texts = {"\n"}, .is_included = true}}, tokens),
              ElementsAre(" and", " the", "\n", "", ""));
  // A character of several byte tokens counts when it is whole.
  const std::vector<int32_t> bytes = Ids(Llama2(), {"<0xE6>", "<0x97>", "<0xA5>"});
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"日"}}}, bytes), 3);
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"\uFFFD"}}}, bytes), -1);
}

TEST(AnswerTextTest, BeginningOfAStopIsHeldBackUntilItIsNone) {
  const Request request = {.prompt = *Llama3().Encode("The lazy dog")};
  const std::vector<int32_t> tokens = Ids(Llama3(), {"Ġthe", "Ġagain", "Ġtokens"});
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"he again tok"}}}, tokens),
              ElementsAre(" t", "", "", ""));
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"he again x"}}}, tokens),
              ElementsAre(" t", "", "he again tokens", ""));
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"kens x"}}}, tokens),
              ElementsAre(" the", " again", " to", "kens"));
  // Included stops are not held back; the text after them is not returned.
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"he again tok"}, .is_included = true}}, tokens),
              ElementsAre(" the", " again", " tok", ""));
}

TEST(AnswerTextTest, TheFirstStopToBeCompleteCounts) {
  const Request request = {.prompt = *Llama3().Encode("The lazy dog")};
  const std::vector<int32_t> again = Ids(Llama3(), {"Ġagain"});
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"agai", "g"}}}, again), ElementsAre(" a", ""));
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"in", "gain"}}}, again), ElementsAre(" a", ""));
}

TEST(AnswerTextTest, StopsMayNameSpecialTokens) {
  const Request request = {.prompt = *Llama3().Encode("The lazy dog")};
  const std::vector<int32_t> tokens = Ids(Llama3(), {"Ġthe", "<|eot_id|>", "Ġagain", "Ġtokens"});
  const auto stream = [&](const std::string& stop, bool is_included = false) {
    return Stream({Llama3(), request, {.texts = {stop}, .is_included = is_included}}, tokens);
  };
  EXPECT_EQ(EndOf({Llama3(), request, {.texts = {"<|eot_id|>"}}}, tokens), 2);
  EXPECT_THAT(stream("<|eot_id|>"), ElementsAre(" the", "", "", "", ""));
  EXPECT_THAT(stream("<|eot_id|>", true), ElementsAre(" the", "<|eot_id|>", "", "", ""));
  EXPECT_EQ(EndOf({Llama3(), request, {.texts = {"he<|eot_id|> ag"}}}, tokens), 3);
  EXPECT_THAT(stream("he<|eot_id|> ag"), ElementsAre(" t", "", "", "", ""));
  EXPECT_THAT(stream("he<|eot_id|> ag", true), ElementsAre(" the", "", "<|eot_id|> ag", "", ""));
  EXPECT_THAT(stream("he<|eot_id|> x"), ElementsAre(" t", "", "he again", " tokens", ""));
  EXPECT_THAT(stream("he<|eot_id|> x", true), ElementsAre(" the", "", " again", " tokens", ""));
  // Other stops are those of the text without special tokens.
  EXPECT_THAT(stream("he ag"), ElementsAre(" t", "", "", "", ""));
  // Spelled in other tokens.
  const std::vector<int32_t> spelled =
      *Llama3().Encode("x<|eot_id|>y", {.special_tokens = SpecialTokens::kPlainText});
  EXPECT_GT(EndOf({Llama3(), request, {.texts = {"<|eot_id|>"}}}, spelled), 0);
}

TEST(AnswerTextTest, SpecialTokensOfAStopKeepTheirPlaceAmongBytes) {
  const Request request = {.prompt = *Llama2().Encode("The lazy dog")};
  const std::vector<int32_t> tokens = Ids(Llama2(), {"<0x0A>", "</s>", "<0x0A>", "▁fox"});
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"\n</s>\n"}}}, tokens), 3);
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"</s>\n fox"}}}, tokens), 4);
  EXPECT_THAT(Stream({Llama2(), request, {.texts = {"</s>\n fox"}}}, tokens),
              ElementsAre("\n", "", "", "", ""));
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"\n\n</s>"}}}, tokens), -1);
  const std::vector<int32_t> divided = Ids(Llama2(), {"<0xC3>", "</s>", "<0xA9>"});
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"</s>é"}}}, divided), 3);
  EXPECT_EQ(EndOf({Llama2(), request, {.texts = {"é</s>"}}}, divided), -1);
}

TEST(AnswerTextTest, ByteTokensStream) {
  const Request request = {.prompt = *Llama2().Encode("The lazy dog")};
  const std::vector<int32_t> tokens =
      Ids(Llama2(), {"<0x0A>", "<0x0A>", "<0xC3>", "<0xA9>", "<0xFF>", "<0x0A>"});
  EXPECT_THAT(Stream({Llama2(), request, {}}, tokens),
              ElementsAre("\n", "\n", "", "é", "\uFFFD", "\n", ""));
  EXPECT_THAT(Stream({Llama2(), request, {.texts = {"\nx"}}}, tokens),
              ElementsAre("", "\n", "", "\né", "\uFFFD", "", "\n"));
}

TEST(AnswerTextTest, TextOfAStopTokenIsPartOfTheStop) {
  const std::vector<int32_t> tokens = Ids(Llama3(), {"Ġthe", "Ġagain"});
  const Request request = {.prompt = *Llama3().Encode("The lazy dog"), .stop_tokens = {tokens[1]}};
  EXPECT_THAT(Stream({Llama3(), request, {}}, tokens), ElementsAre(" the", "", ""));
  EXPECT_THAT(Stream({Llama3(), request, {.is_included = true}}, tokens),
              ElementsAre(" the", " again", ""));
}

TEST(AnswerTextTest, ForcedTokensHaveNoStops) {
  const std::vector<int32_t> tokens = Ids(Llama3(), {"Ġthe", "Ġagain"});
  const Request request = {.prompt = *Llama3().Encode("The lazy dog"),
                           .stop_tokens = {tokens[1]},
                           .forced_tokens = tokens};
  EXPECT_THAT(Stream({Llama3(), request, {.texts = {"he"}}}, tokens),
              ElementsAre(" the", " again", ""));
}

// The text if it ended after so many tokens.
std::string TextOf(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                   std::vector<int32_t> tokens, size_t num_tokens) {
  tokens.resize(num_tokens);
  tokens.insert(tokens.begin(), prompt.begin(), prompt.end());
  return StreamedText(tokenizer, tokens, SpecialTokenText::kSkip)
      .substr(StreamedText(tokenizer, prompt, SpecialTokenText::kSkip).size());
}

struct Cut {
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
};

// The stop that is complete first in a text.
Cut FirstStop(const std::string& text, const std::vector<std::string>& stops) {
  Cut first;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end < first.end || (end == first.end && begin < first.begin)) first = {begin, end};
  }
  return first;
}

// The text without the longest beginning of a stop at its end.
std::string WithoutBeginning(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t size = 1; size < stop.size() && size <= text.size(); ++size) {
      if (text.substr(text.size() - size) == stop.substr(0, size)) {
        longest = std::max(longest, size);
      }
    }
  }
  return text.substr(0, text.size() - longest);
}

void ExpectByDefinition(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                        const std::vector<int32_t>& tokens, const StopTexts& stops) {
  size_t num_tokens = 0;
  Cut cut;
  std::string whole;
  while (num_tokens < tokens.size() && cut.end == std::string::npos) {
    whole = TextOf(tokenizer, prompt, tokens, ++num_tokens);
    cut = FirstStop(whole, stops.texts);
  }
  AnswerText text(tokenizer, {.prompt = prompt}, stops);
  StreamingDecoder decoder(tokenizer, SpecialTokenText::kSkip);
  decoder.Begin(prompt);
  std::string settled;
  std::string joined;
  for (size_t i = 0; i < num_tokens; ++i) {
    joined += text.Push(tokens[i]);
    settled += decoder.Push(tokens[i]);
    const bool is_last = i + 1 == num_tokens && cut.end != std::string::npos;
    ASSERT_EQ(text.has_stopped(), is_last) << "token " << i;
    if (is_last) break;
    ASSERT_EQ(joined, stops.is_included ? settled : WithoutBeginning(settled, stops.texts));
  }
  joined += text.Finish();
  ASSERT_EQ(joined, whole.substr(0, stops.is_included ? cut.end : cut.begin));
}

TEST(AnswerTextTest, RandomTextsMatchTheDefinition) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<int32_t> llama2 = Ids(
      Llama2(), {"▁the", "▁", "t", "h", "e", "<0x0A>", "<0xC3>", "<0xA9>", "<0xFF>", "</s>", "▁t"});
  const std::vector<int32_t> llama3 =
      Ids(Llama3(), {"Ġthe", "Ġ", "t", "h", "e", "Ċ", "Ã", "©", "<|eot_id|>", "Ġt"});
  const std::vector<std::string> pieces = {" ", "t", "h", "e", "\n", "é"};
  for (int round = 0; round < 2000; ++round) {
    const bool is_llama2 = round % 2 == 0;
    const Tokenizer& tokenizer = is_llama2 ? Llama2() : Llama3();
    const std::vector<int32_t>& vocabulary = is_llama2 ? llama2 : llama3;
    std::vector<int32_t> tokens(1 + random() % 12);
    for (int32_t& token : tokens) token = vocabulary[random() % vocabulary.size()];
    StopTexts stops = {.texts = std::vector<std::string>(random() % 3),
                       .is_included = random() % 2 == 0};
    for (std::string& stop : stops.texts) {
      for (int i = 1 + random() % 4; i > 0; --i) stop += pieces[random() % pieces.size()];
    }
    SCOPED_TRACE(testing::Message() << testing::PrintToString(tokens) << " until "
                                    << testing::PrintToString(stops.texts));
    ExpectByDefinition(tokenizer, *tokenizer.Encode("The lazy dog"), tokens, stops);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace reprise
