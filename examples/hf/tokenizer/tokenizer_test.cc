#include "reprise/hf/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/small_tokenizer.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

absl::StatusOr<Tokenizer> Make(const json& tokenizer) {
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  if (!spec.ok()) return spec.status();
  return Tokenizer::Create(*spec);
}

std::string ErrorOf(const json& tokenizer) {
  return std::string(Make(tokenizer).status().message());
}

class SmallTokenizerTest : public testing::Test {
 protected:
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const {
    const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer_.Encode(text, options);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    return *tokens;
  }

  const Tokenizer tokenizer_ = *Make(SmallTokenizerJson());
};

TEST_F(SmallTokenizerTest, EncodesAndDecodes) {
  EXPECT_THAT(Encode("hello wo"), ElementsAre(261, 259, 260, 'o'));
  EXPECT_THAT(Encode("", {.adds_template = false}), IsEmpty());
  EXPECT_THAT(Encode(""), ElementsAre(261));
  EXPECT_THAT(Encode("é", {.adds_template = false}), ElementsAre(0xC3, 0xA9));
  EXPECT_EQ(tokenizer_.Decode({261, 259, 260, 'o', 262}, SpecialTokenText::kKeep),
            "<s>hello wo</s>");
  EXPECT_EQ(tokenizer_.Decode({261, 259, 260, 'o', 262}, SpecialTokenText::kSkip), "hello wo");
  EXPECT_EQ(tokenizer_.Decode({}, SpecialTokenText::kSkip), "");
}

TEST_F(SmallTokenizerTest, SpecialTokensInTheTextAreFoundUnlessForbidden) {
  EXPECT_THAT(Encode("he</s>ll", {.adds_template = false}), ElementsAre(256, 262, 257));
  EXPECT_THAT(Encode("</s>", {.adds_template = false, .special_tokens = SpecialTokens::kPlainText}),
              ElementsAre('<', '/', 's', '>'));
  EXPECT_THAT(Encode("he<s>", {.special_tokens = SpecialTokens::kPlainText}),
              ElementsAre(261, 256, '<', 's', '>'));
}

TEST_F(SmallTokenizerTest, BytesThatAreNoTextBecomeReplacementCharacters) {
  EXPECT_EQ(tokenizer_.Decode({'a', 0xC3, 'b'}, SpecialTokenText::kKeep), "a\uFFFDb");
  EXPECT_EQ(tokenizer_.Decode({0xE6, 0x97}, SpecialTokenText::kKeep), "\uFFFD");
  EXPECT_EQ(tokenizer_.Decode({0xE6, 0x97, 0xA5}, SpecialTokenText::kKeep), "日");
}

TEST_F(SmallTokenizerTest, IdsWithoutATokenAddNothing) {
  EXPECT_EQ(tokenizer_.vocab_size(), 263);
  EXPECT_EQ(tokenizer_.Decode({'a', 263, -1, INT32_MAX, INT32_MIN, 'b'}, SpecialTokenText::kKeep),
            "ab");
  EXPECT_EQ(tokenizer_.TokenContent(263), std::nullopt);
  EXPECT_EQ(tokenizer_.TokenContent(-1), std::nullopt);
  EXPECT_FALSE(tokenizer_.IsSpecial(263));
  EXPECT_FALSE(tokenizer_.IsSpecial(-1));
}

TEST_F(SmallTokenizerTest, TokensAreKnownByContentAndById) {
  EXPECT_THAT(tokenizer_.FindToken("Ġw"), Optional(260));
  EXPECT_THAT(tokenizer_.FindToken("</s>"), Optional(262));
  EXPECT_EQ(tokenizer_.FindToken(" w"), std::nullopt);
  EXPECT_THAT(tokenizer_.TokenContent(260), Optional(std::string_view("Ġw")));
  EXPECT_TRUE(tokenizer_.IsSpecial(261));
  EXPECT_FALSE(tokenizer_.IsSpecial(260));
}

TEST_F(SmallTokenizerTest, RefusesTextThatIsNotUtf8) {
  const auto error_of = [&](std::string_view text) {
    const absl::Status status = tokenizer_.Encode(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error_of("ab\xff"), "text: expected UTF-8, got the byte 0xff at byte 2");
  EXPECT_EQ(error_of("\xC3"), "text: expected UTF-8, got the byte 0xc3 at byte 0");
  EXPECT_EQ(error_of("a\xED\xA0\x80"), "text: expected UTF-8, got the byte 0xed at byte 1");
}

TEST_F(SmallTokenizerTest, AMovedTokenizerIsStillWhole) {
  Tokenizer first = *Make(SmallTokenizerJson());
  const Tokenizer second = std::move(first);
  EXPECT_THAT(*second.Encode("hello</s>"), ElementsAre(261, 259, 262));
}

TEST_F(SmallTokenizerTest, DecodingUndoesEncoding) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = random() % 20; i > 0; --i) {
      const char32_t characters[] = {'h', 'e', 'l', 'l',  'o', ' ',  'w',    '<',    's',
                                     '>', '/', '1', '\n', 0,   0xE9, 0x4E2D, 0x1F642};
      AppendUtf8(characters[random() % std::size(characters)], text);
    }
    ASSERT_EQ(tokenizer_.Decode(Encode(text, {.adds_template = false}), SpecialTokenText::kKeep),
              text);
  }
}

TEST_F(SmallTokenizerTest, LongTextsAndLongWordsTakeNoQuadraticTime) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* unit : {"hello wo ", "hell", "1", "\n", "<s>", "<", "é"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_EQ(tokenizer_.Decode(Encode(text, {.adds_template = false}), SpecialTokenText::kKeep),
              text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(TokenizerTest, AnAddedTokenMayBeOutsideTheAlphabet) {
  json tokenizer = SmallTokenizerJson();
  json token = tokenizer["added_tokens"][0];
  token["content"] = "<｜end▁of 句｜>";
  token["id"] = 300;
  tokenizer["added_tokens"].push_back(token);
  tokenizer["model"]["vocab"]["▁"] = 299;  // of no use, but harmless
  const absl::StatusOr<Tokenizer> made = Make(tokenizer);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(*made->Encode("a<｜end▁of 句｜>"), ElementsAre(261, 'a', 300));
  EXPECT_EQ(made->Decode({300, 299, 298}, SpecialTokenText::kKeep), "<｜end▁of 句｜>▁");
  EXPECT_EQ(made->vocab_size(), 301);
}

TEST(TokenizerTest, AnAddedTokenMayBeInTheVocabulary) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["vocab"]["<s>"] = 261;
  EXPECT_EQ(ErrorOf(tokenizer), "");
  EXPECT_THAT(*Make(tokenizer)->Encode("<s>"), ElementsAre(261, 261));
}

TEST(TokenizerTest, RefusesTokensThatContradictEachOther) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["vocab"]["<s>"] = 300;
  EXPECT_EQ(ErrorOf(tokenizer), "tokens: \"<s>\" has the id 261, but the id 300 as well");
  tokenizer = SmallTokenizerJson();
  tokenizer["added_tokens"][0]["id"] = 97;
  EXPECT_EQ(ErrorOf(tokenizer), "tokens: \"<s>\" has the id 97, but so has \"a\"");
  tokenizer = SmallTokenizerJson();
  tokenizer["model"]["vocab"]["hello"] = 97;
  EXPECT_THAT(ErrorOf(tokenizer), HasSubstr("has the id 97, but so has "));
  tokenizer = SmallTokenizerJson();
  tokenizer["added_tokens"][1]["content"] = "<s>";
  EXPECT_EQ(ErrorOf(tokenizer), "tokens: \"<s>\" has the id 262, but the id 261 as well");
  tokenizer["added_tokens"][1]["id"] = 261;
  EXPECT_EQ(ErrorOf(tokenizer), "added tokens: the tokens 261 and 261 have the same content");
}

TEST(TokenizerTest, RefusesATemplateWithoutItsToken) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["post_processor"]["processors"][1]["special_tokens"]["<s>"]["ids"] = {261, 999};
  EXPECT_EQ(ErrorOf(tokenizer), "template: there is no token with the id 999");
}

TEST(TokenizerTest, RefusesMergesAndPatternsThatMakeNoSense) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["merges"][1] = {"l", "x"};
  EXPECT_EQ(ErrorOf(tokenizer), "merges: number 1: its result is not in the vocabulary");
  tokenizer["model"]["merges"][1] = {"▁", "x"};
  EXPECT_EQ(ErrorOf(tokenizer),
            "merges: number 1: expected the byte-level alphabet, got \"\\u2581\" and \"x\"");
  tokenizer = SmallTokenizerJson();
  tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(";
  EXPECT_THAT(ErrorOf(tokenizer), HasSubstr("split pattern: "));
}

TEST(TokenizerTest, AVocabularyMayLackAByte) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["vocab"].erase("z");
  EXPECT_EQ(Make(tokenizer)->Encode("fuzz").status().message(),
            "text: the vocabulary has no token for the byte 0x7a");
}

TEST(TokenizerTest, SurvivesEveryTruncationAndRandomDamage) {
  const std::string text = SmallTokenizerJson().dump();
  for (size_t length = 0; length < text.size(); ++length)
    ASSERT_FALSE(ParseJson(text.substr(0, length)).ok()) << length;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int num_made = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string damaged = text;
    for (int i = 1 + random() % 3; i > 0; --i)
      damaged[random() % damaged.size()] ^= 1 << random() % 8;
    const absl::StatusOr<json> value = ParseJson(damaged);
    if (!value.ok()) continue;
    const absl::StatusOr<Tokenizer> tokenizer = Make(*value);
    if (!tokenizer.ok()) continue;
    ++num_made;
    const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer->Encode("hello <s> wo");
    if (tokens.ok()) tokenizer->Decode(*tokens, SpecialTokenText::kKeep);
  }
  EXPECT_GT(num_made, 0);
}

TEST(TokenizerTest, LoadNamesThePathInItsErrors) {
  const std::string path = testing::TempDir() + "/tokenizer.json";
  std::ofstream(path) << SmallTokenizerJson().dump();
  EXPECT_TRUE(Tokenizer::Load(path).ok());
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["merges"][0] = "x";
  std::ofstream(path) << tokenizer.dump();
  EXPECT_THAT(Tokenizer::Load(path).status().message(),
              HasSubstr(path + ": model: merges: number 0"));
  tokenizer["model"]["merges"][0] = {"x", "y"};
  std::ofstream(path) << tokenizer.dump();
  EXPECT_EQ(Tokenizer::Load(path).status().message(),
            path + ": merges: number 0: its result is not in the vocabulary");
  std::ofstream(path) << "{";
  EXPECT_EQ(Tokenizer::Load(path).status().message(),
            path + ": not valid JSON at line 1, column 2: expected a name, got end of input");
  EXPECT_EQ(Tokenizer::Load(path + ".missing").status().code(), absl::StatusCode::kNotFound);
}

// The results of Hugging Face tokenizers for the same texts.
TEST(JargonLlamaTokenizerTest, AllCasesBothWays) {
  const absl::StatusOr<Tokenizer> tokenizer =
      Tokenizer::Load("examples/models/jargon-llama/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const absl::StatusOr<json> cases =
      ReadJsonFile("tests/goldens/jargon-llama/tokenizer_cases.json");
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 41u);
  for (const json& c : *cases) {
    const std::string text = c["text"];
    const std::vector<int32_t> ids = c["ids"];
    const std::vector<int32_t> ids_bos = c["ids_bos"];
    EXPECT_EQ(*tokenizer->Encode(text, {.adds_template = false}), ids) << text;
    EXPECT_EQ(*tokenizer->Encode(text), ids_bos) << text;
    EXPECT_EQ(tokenizer->Decode(ids, SpecialTokenText::kKeep), c["decoded"].get<std::string>())
        << text;
  }
}

TEST(JargonLlamaTokenizerTest, TheTextsOfTheModelGoBothWays) {
  const Tokenizer tokenizer = *Tokenizer::Load("examples/models/jargon-llama/tokenizer.json");
  const absl::StatusOr<json> greedy = ReadJsonFile("tests/goldens/jargon-llama/greedy.json");
  ASSERT_TRUE(greedy.ok()) << greedy.status();
  for (const json& c : *greedy) {
    EXPECT_EQ(*tokenizer.Encode(c["prompt"].get<std::string>()),
              c["prompt_ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(tokenizer.Decode(c["tokens"].get<std::vector<int32_t>>(), SpecialTokenText::kSkip),
              c["text"].get<std::string>());
  }
}

}  // namespace
}  // namespace reprise
