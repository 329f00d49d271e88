#include "examples/decode/transcripts.h"

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

using testing::ElementsAre;

Tokenizer JargonTokenizer() {
  auto folder = ModelFolder::Open(*DefaultModelFolder());
  EXPECT_TRUE(folder.ok()) << folder.status();
  return *std::move(folder->tokenizer);
}

TokenEvent Event(int32_t token, FinishReason finish = FinishReason::kNone) {
  return {.token = token, .finish = finish};
}

TEST(TranscriptsTest, TextIsShownAsItIsMadeAndKept) {
  const Tokenizer tokenizer = JargonTokenizer();
  std::ostringstream out;
  TextPrinter printer(out, {""});
  Transcripts transcripts({{.prompt = {0}}}, &tokenizer, {}, &printer);
  const std::vector<int32_t> tokens = *tokenizer.Encode("foo bar", {.adds_template = false});
  for (const int32_t token : tokens) transcripts.Add(0, Event(token));
  EXPECT_EQ(out.str(), "foo bar");
  transcripts.Add(0, Event(1, FinishReason::kStop));  // the end of text has no text
  EXPECT_EQ(out.str(), "foo bar\n");
  const Generation& generation = transcripts.generations()[0];
  EXPECT_THAT(generation.prompt_tokens, ElementsAre(0));
  EXPECT_EQ(generation.tokens.size(), tokens.size() + 1);
  EXPECT_EQ(generation.text, "foo bar");
  EXPECT_EQ(generation.finish, FinishReason::kStop);
}

TEST(TranscriptsTest, NoPartOfACharacterIsShown) {
  const Tokenizer tokenizer = JargonTokenizer();
  std::ostringstream out;
  TextPrinter printer(out, {""});
  Transcripts transcripts({{.prompt = {0}}}, &tokenizer, {}, &printer);
  // A character that is not in the corpus is a token a byte.
  const std::string text = "\xf0\x9f\xa6\x99";  // U+1F999, a llama
  const std::vector<int32_t> tokens = *tokenizer.Encode(text, {.adds_template = false});
  ASSERT_GT(tokens.size(), 1u);
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(out.str(), "");
    transcripts.Add(0, Event(tokens[i]));
  }
  EXPECT_EQ(out.str(), text);
}

TEST(TranscriptsTest, ACharacterThatIsCutOffByTheEndIsReplaced) {
  const Tokenizer tokenizer = JargonTokenizer();
  Transcripts transcripts({{.prompt = {0}}}, &tokenizer, {}, nullptr);
  const std::vector<int32_t> tokens =
      *tokenizer.Encode("\xf0\x9f\xa6\x99", {.adds_template = false});
  transcripts.Add(0, Event(tokens[0], FinishReason::kLength));
  EXPECT_EQ(transcripts.generations()[0].text, "\xef\xbf\xbd");
}

TEST(TranscriptsTest, TextEndsBeforeItsStop) {
  const Tokenizer tokenizer = JargonTokenizer();
  const std::vector<int32_t> tokens = *tokenizer.Encode("foo bar", {.adds_template = false});
  for (const bool is_included : {false, true}) {
    std::ostringstream out;
    TextPrinter printer(out, {""});
    Transcripts transcripts({{.prompt = {0}}}, &tokenizer,
                            {.texts = {"o b"}, .is_included = is_included}, &printer);
    for (size_t i = 0; i < tokens.size(); ++i) {
      transcripts.Add(
          0, Event(tokens[i], i + 1 == tokens.size() ? FinishReason::kStop : FinishReason::kNone));
    }
    EXPECT_EQ(out.str(), is_included ? "foo b\n" : "fo\n");
    EXPECT_EQ(transcripts.generations()[0].text, is_included ? "foo b" : "fo");
    EXPECT_EQ(transcripts.generations()[0].tokens, tokens);
  }
}

TEST(TranscriptsTest, TextThatIsHeldBackIsShownHoweverTheRequestEnds) {
  const Tokenizer tokenizer = JargonTokenizer();
  const std::vector<int32_t> tokens = *tokenizer.Encode("foo bar", {.adds_template = false});
  for (const bool has_end : {false, true}) {
    std::ostringstream out;
    TextPrinter printer(out, {""});
    Transcripts transcripts({{.prompt = {0}}}, &tokenizer, {.texts = {"oo bar END"}}, &printer);
    for (const int32_t token : tokens) transcripts.Add(0, Event(token));
    EXPECT_EQ(out.str(), "f");
    if (has_end) {
      transcripts.Add(0, {.finish = FinishReason::kCancelled});
    } else {
      transcripts.Finish();  // the engine has failed
    }
    EXPECT_EQ(out.str(), has_end ? "foo bar\n" : "foo bar");
    EXPECT_EQ(transcripts.generations()[0].text, "foo bar");
    EXPECT_EQ(transcripts.generations()[0].tokens, tokens);
  }
}

TEST(TranscriptsTest, WithoutATokenizerIdsAreShown) {
  std::ostringstream out;
  TextPrinter printer(out, {""});
  Transcripts transcripts({{.prompt = {0}}}, nullptr, {}, &printer);
  transcripts.Add(0, Event(17));
  transcripts.Add(0, Event(4, FinishReason::kLength));
  EXPECT_EQ(out.str(), "17 4\n");
  EXPECT_EQ(transcripts.generations()[0].text, std::nullopt);
}

TEST(TranscriptsTest, RequestsAreKeptApart) {
  const Tokenizer tokenizer = JargonTokenizer();
  Transcripts transcripts({{.prompt = {0}}, {.prompt = {5}}}, &tokenizer, {}, nullptr);
  transcripts.Add(1, Event(17, FinishReason::kLength));
  EXPECT_THAT(transcripts.generations()[1].tokens, ElementsAre(17));
  EXPECT_THAT(transcripts.generations()[0].tokens, ElementsAre());
  EXPECT_EQ(transcripts.generations()[0].finish, FinishReason::kNone);
}

TEST(GenerationTest, IsAnObjectOnOneLine) {
  EXPECT_EQ(ToJson({.prompt_tokens = {0, 17},
                    .tokens = {5, 200, 1},
                    .text = "n.\n",
                    .finish = FinishReason::kStop}),
            R"({"prompt_tokens":[0,17],"tokens":[5,200,1],"text":"n.\n","finish_reason":"stop"})");
}

TEST(GenerationTest, WithoutATokenizerTheTextIsNull) {
  EXPECT_EQ(ToJson({.prompt_tokens = {7}, .tokens = {}, .finish = FinishReason::kLength}),
            R"({"prompt_tokens":[7],"tokens":[],"text":null,"finish_reason":"length"})");
}

TEST(GenerationTest, BytesThatAreNoTextDoNotBreakTheJson) {
  EXPECT_EQ(ToJson({.text = "a\xff", .finish = FinishReason::kCacheFull}),
            "{\"prompt_tokens\":[],\"tokens\":[],\"text\":\"a\xef\xbf\xbd\","
            "\"finish_reason\":\"cache_full\"}");
}

}  // namespace
}  // namespace reprise
