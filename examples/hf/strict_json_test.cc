#include "reprise/hf/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text, const JsonLimits& limits = {}) {
  const absl::StatusOr<json> value = ParseJson(text, limits);
  if (value.ok()) return "no error";
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

TEST(StrictJsonTest, ReadsWhatTheLibraryReads) {
  for (const char* text : {"null", "true", "-1", "1.5e3", "\"\\u00e9\\ud83d\\ude42\"", "[]", "{}",
                           "[1,[2,[3]],{\"a\":{\"b\":[]}}]", " {\"x\" : [1, 2], \"y\" : null} "}) {
    const absl::StatusOr<json> value = ParseJson(text);
    ASSERT_TRUE(value.ok()) << text << value.status();
    EXPECT_EQ(*value, json::parse(text));
  }
}

TEST(StrictJsonTest, KeepsBigIntegersApartFromFloats) {
  EXPECT_TRUE(ParseJson("9223372036854775808")->is_number_unsigned());
  EXPECT_TRUE(ParseJson("-9223372036854775808")->is_number_integer());
  EXPECT_TRUE(ParseJson("18446744073709551616")->is_number_float());
}

TEST(StrictJsonTest, ErrorsNameTheLineTheColumnAndWhatWasExpected) {
  EXPECT_EQ(ErrorOf("{\"a\": }"), "not valid JSON at line 1, column 7: expected a value, got '}'");
  EXPECT_EQ(ErrorOf("{\n  \"a\": 1,\n  \"b\" 2\n}"),
            "not valid JSON at line 3, column 7: expected ':', got number literal");
  EXPECT_EQ(ErrorOf("{\n  \"a\": 1,\n}"),
            "not valid JSON at line 3, column 1: expected a name, got '}'");
  EXPECT_EQ(ErrorOf("{\n"),
            "not valid JSON at line 2, column 1: expected a name, got end of input");
  EXPECT_EQ(ErrorOf("[1 2]"),
            "not valid JSON at line 1, column 4: expected ',' or ']', got number literal");
  EXPECT_EQ(ErrorOf("{foo: 1}"),
            "not valid JSON at line 1, column 3: expected a name, got an unknown word");
  EXPECT_EQ(ErrorOf("{\"a\": 1 foo}"),
            "not valid JSON at line 1, column 10: expected ',' or '}', got an unknown word");
  EXPECT_EQ(ErrorOf("{} foo"),
            "not valid JSON at line 1, column 5: expected end of input, got an unknown word");
  EXPECT_EQ(ErrorOf("[\n\nnul\x1b[2J]"),
            "not valid JSON at line 3, column 4: expected a value, got an unknown word");
  EXPECT_EQ(ErrorOf("\"abc"),
            "not valid JSON at line 1, column 5: invalid string: missing closing quote");
  for (const char* text :
       {"", " ", "{", "[1,", "[1,]", "{} {}", "nul", "NaN", "Infinity", "'a'", "01", "+1",
        "// comment\n1", "\"\\q\"", "\"\n\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\\ud83d\""}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("not valid JSON at line "))
        << testing::PrintToString(text);
    EXPECT_LE(ErrorOf(text).size(), 200u);
  }
  EXPECT_THAT(ErrorOf("[\n1e999]"), HasSubstr("out of range at line 2, column "));
}

TEST(StrictJsonTest, QuotesNoTextInErrors) {
  const std::string hostile = "\x1b[2J - ; expected you; last read: ";
  for (const std::string& text :
       {"[" + hostile, "[\"" + hostile, "{\"a\" \"" + hostile + "\"}", "[1 \"" + hostile + "\"]"}) {
    EXPECT_THAT(ErrorOf(text), testing::Not(HasSubstr("\x1b")));
    EXPECT_THAT(ErrorOf(text), testing::Not(HasSubstr("you")));
  }
}

TEST(StrictJsonTest, ReadsPythonsNonFiniteNumbersOnRequest) {
  const JsonLimits python = {.has_non_finite = true};
  const absl::StatusOr<json> value = ParseJson(
      R"({"a\"NaN": [Infinity, "Infinity", -Infinity, NaN, "\\"], "xxxxxx": {"b":NaN}, "c": -1})",
      python);
  ASSERT_TRUE(value.ok()) << value.status();
  const json& list = (*value)["a\"NaN"];
  EXPECT_EQ(list[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(list[1], "Infinity");
  EXPECT_EQ(list[2], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(list[3].get<double>()));
  EXPECT_EQ(list[4], "\\");
  EXPECT_TRUE(std::isnan((*value)["xxxxxx"]["b"].get<double>()));
  EXPECT_EQ((*value)["c"], -1);
  EXPECT_EQ(DescribeJson(list[0]) + DescribeJson(list[2]) + DescribeJson(list[3]),
            "Infinity-InfinityNaN");
  EXPECT_EQ(ErrorOf("[1 NaN]", python),
            "not valid JSON at line 1, column 6: expected ',' or ']', got number literal");
  EXPECT_EQ(DescribeJson(*ParseJson("[1, NaN]", python)), "an array of 2 values");
  for (const char* text : {"{NaN: 1}", "[NaNs]", "[1NaN]", "[--Infinity]", "[+Infinity]", "[nan]",
                           "[Infinit]", "[-NaN]", "[NaN NaN]", "[Infinity", "{\"a\" Infinity}"}) {
    EXPECT_THAT(ErrorOf(text, python), HasSubstr("not valid JSON")) << text;
  }
}

TEST(StrictJsonTest, RefusesANameThatOccursTwice) {
  EXPECT_EQ(ErrorOf(R"({"a": 1, "b": {"a": 2}, "a": 3})"), R"(the name "a" occurs twice)");
  EXPECT_EQ(ErrorOf(R"({"a": null, "\u0061": null})"), R"(the name "a" occurs twice)");
}

TEST(StrictJsonTest, RefusesADepthBombBeforeItGrows) {
  EXPECT_EQ(ErrorOf("[[[]]]", {.max_depth = 3}), "no error");
  EXPECT_EQ(ErrorOf("[[[]]]", {.max_depth = 2}), "nested deeper than 2 levels");
  EXPECT_EQ(ErrorOf(R"({"a":{"b":[]}})", {.max_depth = 2}), "nested deeper than 2 levels");
  EXPECT_EQ(ErrorOf(std::string(10'000'000, '[')), "nested deeper than 32 levels");
}

TEST(StrictJsonTest, RefusesMoreValuesThanTheLimit) {
  EXPECT_EQ(ErrorOf("[1,2,3]", {.max_values = 4}), "no error");
  EXPECT_EQ(ErrorOf("[1,2,3]", {.max_values = 3}), "more than 3 values");
  EXPECT_EQ(ErrorOf(R"({"a":[[]]})", {.max_values = 2}), "more than 2 values");
}

TEST(StrictJsonTest, AFileIsNamedInItsErrors) {
  const std::string path = testing::TempDir() + "/strict.json";
  std::ofstream(path) << "{\"a\": [1, 2]}";
  absl::StatusOr<json> value = ReadJsonFile(path);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->dump(), "{\"a\":[1,2]}");
  std::ofstream(path) << "{\"a\": [1, 2]";
  EXPECT_EQ(ReadJsonFile(path).status().message(),
            path + ": not valid JSON at line 1, column 13: expected ',' or '}', got end of input");
  EXPECT_EQ(ReadJsonFile(path + ".missing").status().code(), absl::StatusCode::kNotFound);
}

TEST(StrictJsonTest, DescriptionsAreShortAndPrintable) {
  EXPECT_EQ(DescribeJson(json::parse("[1, 2.5, null]")), "[1,2.5,null]");
  EXPECT_EQ(DescribeJson(json("a\x1b\x7f\u00e9")), "\"a\\u001b\\u007f\\u00e9\"");
  EXPECT_EQ(DescribeJson(json(std::string(100, 'x'))), "a string of 100 bytes");
  EXPECT_EQ(DescribeJson(json::parse("[[1], 2]")), "an array of 2 values");
  EXPECT_EQ(DescribeJson(json({"LlamaForCausalLM", 1})), "[\"LlamaForCausalLM\",1]");
  EXPECT_EQ(DescribeJson(json(std::vector<int>(99))), "an array of 99 values");
  EXPECT_EQ(DescribeJson(json(std::string(20, '\x01'))), "a string of 20 bytes");
  EXPECT_EQ(DescribeJson(json::parse(R"({"a": 1})")), "an object of 1 members");
}

TEST(StrictJsonTest, SurvivesEveryTruncationAndRandomBytes) {
  const std::string text = R"({"a": [1, -2.5e3, "é\n\u00e9"], "b": {"c": null, "d": [true, {}]}})";
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(ErrorOf(text.substr(0, length)), "no error") << length;
  }
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string flipped = text;
    for (int i = 1 + random() % 3; i > 0; --i)
      flipped[random() % flipped.size()] ^= 1 << random() % 8;
    (void)ParseJson(flipped, {.has_non_finite = true});
    const absl::StatusOr<json> value = ParseJson(flipped);
    // What passes is JSON to the library as well.
    if (value.ok()) {
      ASSERT_EQ(*value, json::parse(flipped)) << flipped;
    }
  }
}

}  // namespace
}  // namespace reprise
