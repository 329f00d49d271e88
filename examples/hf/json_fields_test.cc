#include "reprise/hf/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

class JsonFieldsTest : public testing::Test {
 protected:
  const json object_ = json::parse(R"({
      "int": 64, "zero": 0, "negative": -1, "huge": 9223372036854775808, "huger": 1e30,
      "float": 64.0, "number": 1.5, "bool": true, "string": "text", "null": null,
      "ints": [3, 1, 2], "mixed": [1, "2"], "none": [], "object": {"inner": "x"}})");
  const JsonFields fields_ = *JsonFields::Of(object_, "config.json");
};

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& value) {
  return value.ok() ? "no error" : std::string(value.status().message());
}

TEST_F(JsonFieldsTest, GivesWhatIsThere) {
  EXPECT_EQ(*fields_.Int("int", {}), 64);
  EXPECT_EQ(*fields_.Int("negative", {.min = -1}), -1);
  EXPECT_EQ(*fields_.Double("number", {}), 1.5);
  EXPECT_EQ(*fields_.Double("int", {}), 64.0);
  EXPECT_EQ(*fields_.Bool("bool"), true);
  EXPECT_EQ(*fields_.String("string"), "text");
  EXPECT_EQ(*fields_.Object("object")->String("inner"), "x");
  EXPECT_EQ((*fields_.Array("ints"))->size(), 3u);
}

TEST_F(JsonFieldsTest, NullIsAbsent) {
  for (const char* name : {"null", "no such name"}) {
    EXPECT_EQ(*fields_.OptionalInt(name, {}), std::nullopt);
    EXPECT_EQ(*fields_.OptionalInts(name, {}), std::nullopt);
    EXPECT_EQ(*fields_.OptionalDouble(name, {}), std::nullopt);
    EXPECT_EQ(*fields_.OptionalBool(name), std::nullopt);
    EXPECT_EQ(*fields_.OptionalString(name), std::nullopt);
    EXPECT_FALSE(fields_.OptionalObject(name)->has_value());
    EXPECT_EQ(fields_.Find(name), nullptr);
  }
}

TEST_F(JsonFieldsTest, OneIntegerIsAListOfOne) {
  EXPECT_THAT(*fields_.OptionalInts("int", {}), Optional(ElementsAre(64)));
  EXPECT_THAT(*fields_.OptionalInts("ints", {}), Optional(ElementsAre(3, 1, 2)));
  EXPECT_THAT(*fields_.OptionalInts("none", {}), Optional(IsEmpty()));
  EXPECT_EQ(
      ErrorOf(fields_.OptionalInts("mixed", {.max = 9})),
      "config.json: mixed: expected an integer or a list of integers in [0, 9], got [1,\"2\"]");
}

TEST_F(JsonFieldsTest, AListThatMustBeThereIsAList) {
  EXPECT_THAT(*fields_.Ints("ints", {}), ElementsAre(3, 1, 2));
  EXPECT_THAT(*fields_.Ints("none", {}), IsEmpty());
  EXPECT_EQ(ErrorOf(fields_.Ints("int", {.max = 99})),
            "config.json: int: expected a list of integers in [0, 99], got 64");
  EXPECT_EQ(ErrorOf(fields_.Ints("null", {.max = 9})),
            "config.json: null: expected a list of integers in [0, 9], got nothing");
  EXPECT_FALSE(fields_.Ints("mixed", {}).ok());
  EXPECT_FALSE(fields_.Ints("ints", {.max = 2}).ok());
}

TEST_F(JsonFieldsTest, NamesWhatIsMissing) {
  EXPECT_EQ(ErrorOf(fields_.Int("x", {.min = 1, .max = 9})),
            "config.json: x: expected an integer in [1, 9], got nothing");
  EXPECT_EQ(ErrorOf(fields_.Double("x", {})), "config.json: x: expected a number, got nothing");
  EXPECT_EQ(ErrorOf(fields_.Bool("x")), "config.json: x: expected true or false, got nothing");
  EXPECT_EQ(ErrorOf(fields_.String("null")), "config.json: null: expected a string, got nothing");
  EXPECT_EQ(ErrorOf(fields_.Object("x")), "config.json: x: expected an object, got nothing");
  EXPECT_EQ(ErrorOf(fields_.Array("x")), "config.json: x: expected an array, got nothing");
}

TEST_F(JsonFieldsTest, NamesWhatHasAnotherType) {
  for (const char* name :
       {"float", "huger", "huge", "negative", "bool", "string", "ints", "object"}) {
    EXPECT_EQ(
        ErrorOf(fields_.OptionalInt(name, {})),
        "config.json: " + std::string(name) +
            ": expected an integer in [0, 9223372036854775807], got " +
            (std::string(name) == "object" ? "an object of 1 members" : object_[name].dump()));
  }
  EXPECT_EQ(ErrorOf(fields_.Double("string", {.max = 1})),
            "config.json: string: expected a number in [0, 1], got \"text\"");
  EXPECT_EQ(ErrorOf(fields_.Bool("zero")), "config.json: zero: expected true or false, got 0");
  EXPECT_EQ(ErrorOf(fields_.String("int")), "config.json: int: expected a string, got 64");
  EXPECT_EQ(ErrorOf(fields_.Array("int")), "config.json: int: expected an array, got 64");
}

TEST_F(JsonFieldsTest, NamesThePathToAnInnerObject) {
  EXPECT_EQ(ErrorOf(fields_.Object("object")->Int("inner", {.max = 1})),
            "config.json: object: inner: expected an integer in [0, 1], got \"x\"");
  EXPECT_EQ(ErrorOf(JsonFields::Of(object_["ints"], "config.json")),
            "config.json: expected an object, got [3,1,2]");
}

TEST(JsonIntegersTest, AnyFormTakesFloatsWithoutAFraction) {
  const json object = json::parse(R"({
      "whole": 64.0, "power": 1.6e1, "minus": -0.0, "list": [1.0, 2], "fraction": 64.5,
      "limit": 9007199254740992.0, "past": 9007199254740994.0, "huge": 1e300,
      "inner": {"size": 8.0}})");
  const JsonFields fields = *JsonFields::Of(object, "config.json", IntegerForm::kAnyForm);
  EXPECT_EQ(*fields.Int("whole", {}), 64);
  EXPECT_EQ(*fields.Int("power", {}), 16);
  EXPECT_EQ(*fields.Int("minus", {}), 0);
  EXPECT_THAT(*fields.Ints("list", {}), ElementsAre(1, 2));
  EXPECT_EQ(*fields.Int("limit", {}), int64_t{1} << 53);
  EXPECT_EQ(*fields.Object("inner")->Int("size", {}), 8);
  EXPECT_EQ(ErrorOf(fields.Int("fraction", {.min = 1, .max = 99})),
            "config.json: fraction: expected an integer in [1, 99], got 64.5");
  EXPECT_EQ(ErrorOf(fields.Int("whole", {.min = 1, .max = 63})),
            "config.json: whole: expected an integer in [1, 63], got 64.0");
  EXPECT_FALSE(fields.Int("past", {}).ok());
  EXPECT_FALSE(fields.Int("huge", {}).ok());
}

TEST_F(JsonFieldsTest, RangesIncludeTheirEnds) {
  EXPECT_TRUE(fields_.Int("int", {.min = 64, .max = 64}).ok());
  EXPECT_FALSE(fields_.Int("int", {.min = 65, .max = 66}).ok());
  EXPECT_FALSE(fields_.Int("int", {.min = 62, .max = 63}).ok());
  EXPECT_TRUE(fields_.Double("number", {.min = 1.5, .max = 1.5}).ok());
  EXPECT_FALSE(fields_.Double("number", {.min = 1.6}).ok());
}

TEST_F(JsonFieldsTest, RefusesWhatIsNotKnown) {
  const JsonFields inner = *fields_.Object("object");
  EXPECT_TRUE(inner.RefuseOthers({"inner", "other"}).ok());
  EXPECT_EQ(inner.RefuseOthers({"a", "b"}).message(),
            "config.json: object: \"inner\" is not supported; known are a, b");
}

}  // namespace
}  // namespace reprise
