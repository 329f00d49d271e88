#include "reprise/hf/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/tokenizer/small_tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using Pointer = json::json_pointer;

std::string ErrorOf(const json& tokenizer) {
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  if (spec.ok()) return "no error";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

// The error with one member replaced, such as "/model/type".
std::string ErrorWith(const std::string& pointer, const json& value) {
  json tokenizer = SmallTokenizerJson();
  tokenizer[Pointer(pointer)] = value;
  return ErrorOf(tokenizer);
}

TEST(TokenizerJsonTest, ReadsEveryMember) {
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(SmallTokenizerJson());
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model.vocabulary.size(), 261u);
  EXPECT_THAT(spec->model.vocabulary, testing::Contains(Pair("hello", 259)));
  EXPECT_THAT(spec->model.merges, ElementsAre(Merge("h", "e"), Merge("l", "l"), Merge("he", "ll"),
                                              Merge("hell", "o"), Merge("Ġ", "w")));
  EXPECT_EQ(spec->model.whole_pieces, WholePieces::kMerge);
  EXPECT_EQ(spec->model.symbols.units, SymbolUnits::kBytes);
  EXPECT_THAT(spec->normalizer, IsEmpty());
  ASSERT_EQ(spec->pre_tokenizer.size(), 1u);
  EXPECT_EQ(std::get<SplitStep>(spec->pre_tokenizer[0]).pattern,
            R"( ?\p{L}+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+)");
  EXPECT_EQ(spec->decoder.size(), 1u);
  ASSERT_EQ(spec->added_tokens.size(), 2u);
  EXPECT_EQ(spec->added_tokens[1].id, 262);
  EXPECT_EQ(spec->added_tokens[1].content, "</s>");
  EXPECT_TRUE(spec->added_tokens[1].is_special);
  EXPECT_FALSE(spec->added_tokens[1].strips_left);
  EXPECT_THAT(spec->text_template.prefix, ElementsAre(261));
  EXPECT_THAT(spec->text_template.suffix, IsEmpty());
}

TEST(TokenizerJsonTest, ReadsTheFlagsOfAddedTokens) {
  json tokenizer = SmallTokenizerJson();
  json& token = tokenizer["added_tokens"][0];
  token["lstrip"] = token["rstrip"] = token["normalized"] = token["single_word"] = true;
  token["special"] = false;
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->added_tokens[0].strips_left);
  EXPECT_TRUE(spec->added_tokens[0].strips_right);
  EXPECT_TRUE(spec->added_tokens[0].is_normalized);
  EXPECT_FALSE(spec->added_tokens[0].is_special);
  EXPECT_TRUE(spec->added_tokens[0].is_single_word);
  EXPECT_FALSE(spec->added_tokens[1].is_single_word);
}

// As a file has them that was saved while a batch was encoded.
TEST(TokenizerJsonTest, TruncationAndPaddingAreNotUsed) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["truncation"] = {
      {"direction", "Right"}, {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  tokenizer["padding"] = {{"strategy", {{"Fixed", 8}}},
                          {"direction", "Left"},
                          {"pad_to_multiple_of", nullptr},
                          {"pad_id", 262},
                          {"pad_type_id", 0},
                          {"pad_token", "</s>"}};
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(*Tokenizer::Create(*spec)->Encode("hello world"),
              *Tokenizer::Create(*ParseTokenizerJson(SmallTokenizerJson()))->Encode("hello world"));
}

TEST(TokenizerJsonTest, MergesMayBeStrings) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"]["merges"] = {"h e", "l l", "he ll", "hell o", "Ġ w"};
  tokenizer["model"]["ignore_merges"] = true;
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->model.merges, ElementsAre(Merge("h", "e"), Merge("l", "l"), Merge("he", "ll"),
                                              Merge("hell", "o"), Merge("Ġ", "w")));
  EXPECT_EQ(spec->model.whole_pieces, WholePieces::kLookUp);
}

TEST(TokenizerJsonTest, MembersThatAreCustomarilyLeftOutMayBe) {
  json tokenizer = SmallTokenizerJson();
  for (const char* name : {"truncation", "padding", "normalizer", "added_tokens", "post_processor"})
    tokenizer.erase(name);
  for (const char* name : {"dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"})
    tokenizer["model"].erase(name);
  tokenizer["model"]["continuing_subword_prefix"] = "";  // as GPT-2 has it
  tokenizer["model"]["end_of_word_suffix"] = "";
  EXPECT_EQ(ErrorOf(tokenizer), "no error");
  EXPECT_THAT(ParseTokenizerJson(tokenizer)->text_template.prefix, IsEmpty());
}

TEST(TokenizerJsonTest, TheTemplateMaySurroundTheText) {
  json tokenizer = SmallTokenizerJson();
  json& processor = tokenizer["post_processor"]["processors"][1];
  processor["special_tokens"]["end"] = {
      {"id", "end"}, {"ids", {262, 261}}, {"tokens", {"</s>", "<s>"}}};
  processor["single"].push_back({{"SpecialToken", {{"id", "end"}, {"type_id", 0}}}});
  json alone = tokenizer;
  alone["post_processor"] = processor;
  for (const json& form : {tokenizer, alone}) {
    const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(form);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_THAT(spec->text_template.prefix, ElementsAre(261));
    EXPECT_THAT(spec->text_template.suffix, ElementsAre(262, 261));
  }
}

TEST(TokenizerJsonTest, RobertasTemplateIsItsTwoTokens) {
  json tokenizer = SmallTokenizerJson();
  const json roberta = {{"type", "RobertaProcessing"},
                        {"sep", {"</s>", 262}},
                        {"cls", {"<s>", 261}},
                        {"trim_offsets", true},
                        {"add_prefix_space", false}};
  tokenizer["post_processor"] = roberta;
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(tokenizer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->text_template.prefix, ElementsAre(261));
  EXPECT_THAT(spec->text_template.suffix, ElementsAre(262));
  for (const json& twisted : {json(), json("</s>"), json({"</s>"}), json({"</s>", -1}),
                              json({"</s>", 1e9}), json({262, "</s>"}), json({"</s>", 1 << 30})}) {
    for (const char* name : {"sep", "cls"}) {
      tokenizer["post_processor"] = roberta;
      tokenizer["post_processor"][name] = twisted;
      EXPECT_THAT(ErrorOf(tokenizer),
                  HasSubstr(std::string(name) + ": expected a token and its id in [0, 4194303]"))
          << twisted;
    }
  }
  tokenizer["post_processor"] = roberta;
  tokenizer["post_processor"]["surprise"] = 1;
  EXPECT_THAT(ErrorOf(tokenizer), HasSubstr("\"surprise\" is not supported"));
}

TEST(TokenizerJsonTest, RefusesOtherKindsOfTokenizersByName) {
  EXPECT_EQ(ErrorWith("/model/type", "Unigram"),
            "tokenizer.json: model: type: expected \"BPE\", got \"Unigram\"");
  EXPECT_THAT(ErrorWith("/truncation", 5), HasSubstr("truncation: expected an object, got 5"));
  EXPECT_THAT(ErrorWith("/version", "2.0"), HasSubstr("version: expected \"1.0\", got \"2.0\""));
  EXPECT_THAT(ErrorWith("/surprise", 1), HasSubstr("\"surprise\" is not supported"));
  EXPECT_THAT(ErrorWith("/added_tokens/0/single_word", "yes"),
              HasSubstr("added_tokens[0]: single_word: expected true or false, got \"yes\""));
}

TEST(TokenizerJsonTest, RefusesModelsWithWhatIsNotImplemented) {
  EXPECT_THAT(
      ErrorWith("/model/dropout", 0.1),
      HasSubstr("model: dropout: expected null, as this feature is not supported, got 0.1"));
  EXPECT_THAT(ErrorWith("/model/end_of_word_suffix", "</w>"),
              HasSubstr("end_of_word_suffix: expected null"));
  EXPECT_THAT(ErrorWith("/model/continuing_subword_prefix", "##"),
              HasSubstr("continuing_subword_prefix: expected null"));
  EXPECT_THAT(
      ErrorWith("/model/byte_fallback", true),
      HasSubstr("byte_fallback: expected false, as the pre_tokenizer is ByteLevel, got true"));
  EXPECT_THAT(ErrorWith("/model/surprise", 1), HasSubstr("model: \"surprise\" is not supported"));
}

TEST(TokenizerJsonTest, OlderFilesDoNotNameTheTypeOfTheModel) {
  json tokenizer = SmallTokenizerJson();
  tokenizer["model"].erase("type");
  EXPECT_EQ(ErrorOf(tokenizer), "no error");
  tokenizer["model"].erase("merges");
  EXPECT_EQ(ErrorOf(tokenizer), "tokenizer.json: model: type: expected \"BPE\", got nothing");
}

TEST(TokenizerJsonTest, RefusesOtherPostProcessorsByName) {
  const std::string processor = "/post_processor/processors/1";
  EXPECT_THAT(ErrorWith(processor + "/type", "BertProcessing"),
              HasSubstr("processors[1]: type: expected \"ByteLevel\", \"TemplateProcessing\" "
                        "or \"RobertaProcessing\", "
                        "got \"BertProcessing\""));
  EXPECT_THAT(ErrorWith("/post_processor", "x"), HasSubstr("post_processor: expected an object"));
  EXPECT_THAT(ErrorWith(processor + "/single", json::array()),
              HasSubstr("single: expected a list with the Sequence A, got []"));
  EXPECT_THAT(ErrorWith(processor + "/single/1/Sequence/id", "B"),
              HasSubstr("Sequence: id: expected \"A\", got \"B\""));
  EXPECT_THAT(ErrorWith(processor + "/single/2", {{"Sequence", {{"id", "A"}}}}),
              HasSubstr("expected the text once only"));
  EXPECT_THAT(ErrorWith(processor + "/single/2", {{"Surprise", 1}}),
              HasSubstr("\"Surprise\" is not supported"));
  EXPECT_THAT(ErrorWith(processor + "/single/2", json::object()),
              HasSubstr("SpecialToken: expected an object, got nothing"));
  EXPECT_THAT(ErrorWith(processor + "/single/0/SpecialToken/id", "<x>"),
              HasSubstr("special_tokens: <x>: expected an object, got nothing"));
  EXPECT_THAT(ErrorWith(processor + "/special_tokens/<s>/ids", {-1}),
              HasSubstr("ids: expected an integer or a list of integers"));
  EXPECT_THAT(ErrorWith("/post_processor/processors/2", SmallTokenizerJson()[Pointer(processor)]),
              HasSubstr("processors[2]: type: expected one template only"));
}

TEST(TokenizerJsonTest, RefusesIdsThatAreNone) {
  for (const json& id : {json(-1), json(1 << 22), json(int64_t{1} << 40), json(UINT64_MAX),
                         json(1.0), json("1"), json(nullptr), json::array()}) {
    EXPECT_THAT(ErrorWith("/model/vocab/hello", id),
                HasSubstr("vocab: \"hello\": expected an integer in [0, 4194303], got "))
        << id;
    EXPECT_THAT(ErrorWith("/added_tokens/1/id", id),
                HasSubstr("added_tokens[1]: id: expected an integer in [0, 4194303], got "))
        << id;
  }
}

TEST(TokenizerJsonTest, RefusesMergesThatAreNone) {
  for (const json& merge :
       {json("he"), json("h e l"), json(""), json(1), json(nullptr), json::array(), json({"h"}),
        json({"h", "e", "l"}), json({"h", 1}), json::object()}) {
    EXPECT_THAT(
        ErrorWith("/model/merges/1", merge),
        HasSubstr(
            "model: merges: number 1: expected \"left right\" or [\"left\", \"right\"], got "))
        << merge;
  }
  EXPECT_THAT(ErrorWith("/model/merges", json::object()), HasSubstr("merges: expected an array"));
}

TEST(TokenizerJsonTest, NoMemberMayHaveAnotherType) {
  // Every value of the document, one by one, replaced by each kind of value: nothing may crash.
  std::vector<std::string> pointers;
  const json flat = SmallTokenizerJson().flatten();
  for (const auto& [pointer, value] : flat.items()) {
    // Also everything that contains it.
    for (size_t end = pointer.size(); end != std::string::npos && end > 0;
         end = pointer.rfind('/', end - 1))
      pointers.push_back(pointer.substr(0, end));
  }
  std::sort(pointers.begin(), pointers.end());
  pointers.erase(std::unique(pointers.begin(), pointers.end()), pointers.end());
  int num_refused = 0;
  for (const std::string& pointer : pointers) {
    if (pointer.find("/model/vocab/") == 0 && pointer.find("hell") == std::string::npos)
      continue;  // one will do
    for (const json& value : {json(nullptr), json(true), json(-7), json(1.5), json("x"),
                              json::array({1}), json({{"x", 1}})}) {
      num_refused += ErrorWith(pointer, value) != "no error" ? 1 : 0;
    }
  }
  EXPECT_GT(num_refused, 200);
}

}  // namespace
}  // namespace reprise
