// The readers of a tokenizer.json's parts: what each accepts, and one sentence for all else.

#include "reprise/hf/tokenizer/tokenizer_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/tokenizer/pipeline_json.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

JsonFields Fields(const json& root) { return *JsonFields::Of(root, "t.json"); }

absl::StatusOr<std::vector<NormalizerStep>> Normalizer(const json& part) {
  const json root = {{"normalizer", part}};
  return ReadNormalizer(Fields(root));
}

absl::StatusOr<PreTokenizerSpec> PreTokenizer(const json& part) {
  const json root = {{"pre_tokenizer", part}};
  return ReadPreTokenizer(Fields(root));
}

absl::StatusOr<std::vector<DecoderStep>> Decoder(const json& part,
                                                 SymbolUnits units = SymbolUnits::kCharacters) {
  const json root = {{"decoder", part}};
  return ReadDecoder(Fields(root), units);
}

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& result) {
  return result.ok() ? "no error" : std::string(result.status().message());
}

json Sequence(const char* members, const std::vector<json>& parts) {
  return {{"type", "Sequence"}, {members, parts}};
}

json Replace(const char* what, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}

TEST(TokenizerPartsTest, SequencesMayBeNestedEmptyOrAbsent) {
  EXPECT_THAT(*Normalizer(nullptr), IsEmpty());
  EXPECT_THAT(*Normalizer(Sequence("normalizers", {})), IsEmpty());
  const json inner = Sequence("normalizers", {{{"type", "NFC"}}, Replace(" ", "▁")});
  const auto steps = Normalizer(Sequence("normalizers", {inner, inner}));
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_THAT(*steps, SizeIs(4));
  EXPECT_EQ(ErrorOf(Normalizer({{"type", "Sequence"}})),
            "t.json: normalizer: normalizers: expected an array, got nothing");
  EXPECT_EQ(ErrorOf(Normalizer(Sequence("normalizers", {json(1)}))),
            "t.json: normalizer: normalizers[0]: expected an object, got 1");
  EXPECT_EQ(ErrorOf(Normalizer(json::object())),
            "t.json: normalizer: type: expected a string, got nothing");
}

TEST(TokenizerPartsTest, Normalizers) {
  const auto prepend = Normalizer({{"type", "Prepend"}, {"prepend", "▁"}});
  ASSERT_TRUE(prepend.ok()) << prepend.status();
  EXPECT_EQ(std::get<PrependStep>((*prepend)[0]).text, "▁");
  const auto replace = Normalizer(Replace(" ", "▁"));
  ASSERT_TRUE(replace.ok()) << replace.status();
  EXPECT_EQ(std::get<ReplaceStep>((*replace)[0]).what, " ");
  EXPECT_EQ(std::get<ReplaceStep>((*replace)[0]).by, "▁");
  EXPECT_EQ(ErrorOf(Normalizer({{"type", "Lowercase"}})),
            "t.json: normalizer: type: expected \"Prepend\", \"Replace\", \"NFC\" or \"Sequence\", "
            "got \"Lowercase\"");
  EXPECT_EQ(ErrorOf(Normalizer(Replace("", "x"))),
            "t.json: normalizer: pattern: String: expected at least one character, got \"\"");
  json expression = Replace("x", "y");
  expression["pattern"] = {{"Regex", " {2,}"}};
  EXPECT_THAT(ErrorOf(Normalizer(expression)), HasSubstr("pattern: \"Regex\" is not supported"));
  EXPECT_THAT(ErrorOf(Normalizer({{"type", "NFC"}, {"x", 1}})),
              HasSubstr("\"x\" is not supported"));
}

TEST(TokenizerPartsTest, TextsThatGrowWithoutBoundAreRefused) {
  EXPECT_TRUE(Normalizer(Replace("a", std::string(64, 'a').c_str())).ok());
  EXPECT_THAT(ErrorOf(Normalizer(Replace("a", std::string(65, 'a').c_str()))),
              HasSubstr("expected a replacement by which texts grow no more than 64-fold"));
  const std::vector<json> nine(9, Replace("a", "aa"));
  EXPECT_THAT(ErrorOf(Normalizer(Sequence("normalizers", nine))),
              HasSubstr("normalizers[6]: content: expected a replacement by which texts grow no"));
  EXPECT_THAT(ErrorOf(Decoder(Sequence("decoders", nine))), HasSubstr("no more than 64-fold"));
  const std::vector<json> many(65, {{"type", "NFC"}});
  EXPECT_THAT(ErrorOf(Normalizer(Sequence("normalizers", many))), HasSubstr("at most 64 parts"));
}

TEST(TokenizerPartsTest, Splits) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"String", " "}}},
                      {"behavior", "MergedWithPrevious"},
                      {"invert", true}};
  const auto spec = PreTokenizer(split);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const SplitStep& step = std::get<SplitStep>(spec->steps[0]);
  EXPECT_EQ(step.kind, SplitStep::kLiteral);
  EXPECT_EQ(step.behavior, SplitBehavior::kMergedWithPrevious);
  EXPECT_EQ(step.of, SplitStep::kOthers);
  EXPECT_EQ(spec->units, SymbolUnits::kCharacters);
  const auto error_with = [&](const char* name, const json& value) {
    json twisted = split;
    twisted[name] = value;
    return ErrorOf(PreTokenizer(twisted));
  };
  EXPECT_THAT(error_with("behavior", "Doubled"), HasSubstr("expected \"Isolated\", \"Removed\""));
  EXPECT_THAT(error_with("pattern", json::object()), HasSubstr("Regex: expected a string"));
  EXPECT_THAT(error_with("pattern", {{"Regex", ""}}), HasSubstr("at least one character"));
  EXPECT_THAT(error_with("pattern", {{"Regex", "a"}, {"String", "b"}}),
              HasSubstr("pattern: expected a Regex or a String"));
  EXPECT_THAT(error_with("type", "WhitespaceSplit"),
              HasSubstr("expected \"Split\", \"Digits\", \"Metaspace\", \"ByteLevel\" or"));
}

TEST(TokenizerPartsTest, MetaspaceIsUpToThreeSteps) {
  const auto num_steps = [](const json& more) {
    json part = {{"type", "Metaspace"}, {"replacement", "▁"}};
    part.update(more);
    const auto spec = PreTokenizer(part);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->steps.size();
  };
  EXPECT_EQ(num_steps(json::object()), 3u);
  EXPECT_EQ(num_steps({{"split", false}}), 2u);
  EXPECT_EQ(num_steps({{"split", false}, {"prepend_scheme", "never"}}), 1u);
  EXPECT_EQ(num_steps({{"add_prefix_space", false}}), 2u);
  EXPECT_EQ(num_steps({{"add_prefix_space", true}, {"prepend_scheme", "first"}}), 3u);
  EXPECT_EQ(ErrorOf(PreTokenizer({{"type", "Metaspace"}, {"replacement", "▁▁"}})),
            "t.json: pre_tokenizer: replacement: expected one character, got \"\\u2581\\u2581\"");
  EXPECT_THAT(ErrorOf(PreTokenizer(
                  {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "last"}})),
              HasSubstr("prepend_scheme: expected \"always\", \"first\" or \"never\""));
}

TEST(TokenizerPartsTest, ByteLevelIsLast) {
  const auto spec = PreTokenizer({{"type", "ByteLevel"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->units, SymbolUnits::kBytes);
  EXPECT_THAT(spec->steps, SizeIs(2));  // a space, and GPT-2's pattern
  EXPECT_THAT(
      PreTokenizer({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}})
          ->steps,
      IsEmpty());
  EXPECT_EQ(ErrorOf(PreTokenizer(
                Sequence("pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}))),
            "t.json: pre_tokenizer: pretokenizers[1]: type: expected nothing after ByteLevel, got "
            "\"Digits\"");
}

TEST(TokenizerPartsTest, RunsOfBytesAreWholeForDecodersOfTokens) {
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  for (const json& later : {strip, Replace("▁", " ")}) {
    const auto steps = Decoder(Sequence("decoders", {{{"type", "ByteFallback"}}, later}));
    ASSERT_TRUE(steps.ok()) << steps.status();
    EXPECT_EQ(std::get<ByteTokenStep>((*steps)[0]).runs, ByteTokenStep::kWhole);
  }
}

TEST(TokenizerPartsTest, DecodersAfterFuseStripTheText) {
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const auto steps = Decoder(Sequence(
      "decoders", {Replace("▁", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}));
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_THAT(*steps, SizeIs(3));
  EXPECT_EQ(std::get<StripStep>((*steps)[2]).of, StripStep::kText);
  EXPECT_EQ(std::get<ByteTokenStep>((*steps)[1]).runs, ByteTokenStep::kByCharacter);
  EXPECT_EQ(std::get<StripStep>((*Decoder(strip))[0]).of, StripStep::kEachToken);
  EXPECT_EQ(ErrorOf(Decoder(Sequence("decoders", {{{"type", "Fuse"}}, Replace("▁", " ")}))),
            "t.json: decoder: decoders[1]: type: expected only \"Strip\" after \"Fuse\", got "
            "\"Replace\"");
  json both_ends = strip;
  both_ends["stop"] = 1;
  EXPECT_EQ(ErrorOf(Decoder(both_ends)),
            "t.json: decoder: stop: expected 0, as the end of a text is not stripped, got 1");
}

TEST(TokenizerPartsTest, DecodersThatDoNotFitAreRefused) {
  EXPECT_EQ(ErrorOf(Decoder(nullptr)), "t.json: decoder: expected an object, got nothing");
  EXPECT_THAT(ErrorOf(Decoder({{"type", "WordPiece"}})),
              HasSubstr("decoder: type: expected \"Replace\", \"ByteFallback\""));
  EXPECT_THAT(ErrorOf(Decoder({{"type", "ByteLevel"}})), HasSubstr("if the pre_tokenizer has it"));
  EXPECT_EQ(ErrorOf(Decoder({{"type", "Metaspace"}, {"replacement", "▁"}}, SymbolUnits::kBytes)),
            "t.json: decoder: type: expected \"ByteLevel\", got \"Metaspace\"");
  EXPECT_THAT(ErrorOf(Decoder(Sequence("decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}),
                              SymbolUnits::kBytes)),
              HasSubstr("expected nothing beside ByteLevel"));
  EXPECT_TRUE(Decoder({{"type", "ByteLevel"}, {"trim_offsets", true}}, SymbolUnits::kBytes).ok());
}

}  // namespace
}  // namespace reprise
