// Small tokenizers of the published kinds against what Hugging Face's tokenizers make of the same
// texts and ids; testdata/make_cases.py wrote both.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/streamed_text.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using Tokens = std::vector<int32_t>;

class TokenizerCasesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = absl::StrCat("examples/hf/tokenizer/testdata/", GetParam(), ".json");
    absl::StatusOr<json> file = ReadJsonFile(path);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(file_["tokenizer"]);
    ASSERT_TRUE(spec.ok()) << spec.status();
    absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(*spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  Tokens Encode(const std::string& text, const EncodeOptions& options) const {
    const absl::StatusOr<Tokens> tokens = tokenizer_->Encode(text, options);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return tokens.value_or(Tokens());
  }

  std::string Streamed(const Tokens& tokens, SpecialTokenText special_tokens) const {
    StreamingDecoder decoder(*tokenizer_, special_tokens);
    std::string together;
    for (const int32_t token : tokens) {
      const std::string text = decoder.Push(token);
      EXPECT_FALSE(FindInvalidUtf8(text).has_value());
      together += text;
    }
    return together + decoder.Finish();
  }

  json file_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_P(TokenizerCasesTest, TextsBecomeTheSameTokens) {
  ASSERT_GE(file_["cases"].size(), 90u);
  for (const json& c : file_["cases"]) {
    const std::string text = c["text"];
    SCOPED_TRACE(testing::PrintToString(text));
    const Tokens ids = c["ids"];
    EXPECT_EQ(Encode(text, {.adds_template = false}), ids);
    EXPECT_EQ(Encode(text, {}), c.value("template", ids));
    EXPECT_EQ(Encode(text, {.adds_template = false, .special_tokens = SpecialTokens::kPlainText}),
              c.value("plain", ids));
  }
}

TEST_P(TokenizerCasesTest, AndTheSameTextsAgain) {
  for (const json& c : file_["cases"]) {
    const Tokens ids = c["ids"];
    const std::string back = c.value("back", c["text"].get<std::string>());
    EXPECT_EQ(tokenizer_->Decode(ids, SpecialTokenText::kKeep), back);
    EXPECT_EQ(Streamed(ids, SpecialTokenText::kKeep), back);
  }
}

TEST_P(TokenizerCasesTest, AnyTokensBecomeTheSameText) {
  ASSERT_GE(file_["decoded"].size(), 50u);
  for (const json& c : file_["decoded"]) {
    SCOPED_TRACE(c["ids"].dump());
    const Tokens ids = c["ids"];
    const std::string text = c["text"];
    const std::string without = c.value("without", text);
    EXPECT_EQ(tokenizer_->Decode(ids, SpecialTokenText::kKeep), text);
    EXPECT_EQ(tokenizer_->Decode(ids, SpecialTokenText::kSkip), without);
    EXPECT_EQ(Streamed(ids, SpecialTokenText::kKeep),
              StreamedText(*tokenizer_, ids, SpecialTokenText::kKeep));
    EXPECT_EQ(Streamed(ids, SpecialTokenText::kSkip),
              StreamedText(*tokenizer_, ids, SpecialTokenText::kSkip));
  }
}

TEST_P(TokenizerCasesTest, RandomBytesMatchTheirDefinition) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  Tokens pieces;
  for (const char* content :
       {"<s>",    "</s>",   "▁",      "a",      "▁the",   "<0x0A>", "<0x20>", "<0xC3>",
        "<0xA9>", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "<0xE6>", "<0xFF>", "Ġ",
        "Ã",      "©",      "ð",      "Ł",      "Ļ",      "Ĥ",      "ÿ"}) {
    if (const auto token = tokenizer_->FindToken(content)) pieces.push_back(*token);
  }
  for (int round = 0; round < 5000; ++round) {
    Tokens tokens(random() % 12);
    for (int32_t& token : tokens) token = pieces[random() % pieces.size()];
    SCOPED_TRACE(testing::PrintToString(tokens));
    for (const auto special_tokens : {SpecialTokenText::kKeep, SpecialTokenText::kSkip}) {
      const std::string all = StreamedText(*tokenizer_, tokens, special_tokens);
      const std::string decoded = tokenizer_->Decode(tokens, special_tokens);
      ASSERT_EQ(Streamed(tokens, special_tokens), all);
      // Without U+FFFD, all runs are UTF-8.
      if (decoded.find("\uFFFD") == std::string::npos) ASSERT_EQ(all, decoded);
      // The text after a prompt is the rest of the text of all tokens.
      const auto middle = tokens.begin() + random() % (tokens.size() + 1);
      const Tokens prompt(tokens.begin(), middle);
      const std::string begin = StreamedText(*tokenizer_, prompt, special_tokens);
      if (!all.starts_with(begin)) continue;  // the prompt divides a character
      StreamingDecoder decoder(*tokenizer_, special_tokens);
      decoder.Begin(prompt);
      std::string rest;
      for (auto token = middle; token != tokens.end(); ++token) rest += decoder.Push(*token);
      ASSERT_EQ(begin + rest + decoder.Finish(), all);
    }
  }
}

// Whole characters come with the token that completes them.
TEST_P(TokenizerCasesTest, TextsStreamWithoutDelay) {
  for (const char* text : {"a\n\nb", "日本\n🙂\x01", "\u1208\n"}) {
    StreamingDecoder decoder(*tokenizer_, SpecialTokenText::kSkip);
    Tokens tokens;
    std::string streamed;
    for (const int32_t token : Encode(text, {})) {
      tokens.push_back(token);
      streamed += decoder.Push(token);
      std::string decoded = tokenizer_->Decode(tokens, SpecialTokenText::kSkip);
      if (decoded.find("\uFFFD") == std::string::npos) EXPECT_EQ(streamed, decoded);
    }
    EXPECT_EQ(decoder.Finish(), "");
  }
}

TEST_P(TokenizerCasesTest, LongTextsTakeNoQuadraticTime) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* unit :
       {"a", "the", " ", "ab ", "é", "🙂", "\n", "1", "<", "▁", "e\u0301", "<s>"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    const Tokens tokens = Encode(text, {.adds_template = false});
    EXPECT_GT(tokens.size(), 1'000u) << unit;
    EXPECT_EQ(Streamed(tokens, SpecialTokenText::kKeep),
              tokenizer_->Decode(tokens, SpecialTokenText::kKeep));
  }
  // A second or two, where quadratic time would be an hour.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST_P(TokenizerCasesTest, TextThatIsNotUtf8IsRefused) {
  for (const char* text : {"\xff", "a\xc3", "\xed\xa0\x80"}) {
    EXPECT_EQ(tokenizer_->Encode(text).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(TokenizerCasesTest, AnyTextBecomesTokensWhoseStreamIsTheirText) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr char32_t kCharacters[] = U"aeth  \n\t▁<>/s0x41é日🙂\u0301\u1112\u1161\u200d";
  for (int round = 0; round < 1000; ++round) {
    std::string text;
    for (int i = random() % 20; i > 0; --i) {
      AppendUtf8(kCharacters[random() % (std::size(kCharacters) - 1)], text);
    }
    const Tokens tokens = Encode(text, {});
    ASSERT_EQ(Streamed(tokens, SpecialTokenText::kSkip),
              tokenizer_->Decode(tokens, SpecialTokenText::kSkip))
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerCasesTest,
                         testing::Values("bart", "bloom", "deepseek2", "gemma2", "llama2", "llama3",
                                         "mistral3", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace reprise
