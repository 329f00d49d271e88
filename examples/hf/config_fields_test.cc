#include "reprise/hf/config_fields.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/text_config.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr ModelKind kKinds[] = {{"OneForCausalLM", "one"}, {"TwoForCausalLM", "two"}};

// The index, or the error.
std::string Found(const json& config) {
  const auto kind = FindModelKind(*JsonFields::Of(config, "config.json"), kKinds);
  return kind.ok() ? std::to_string(*kind) : std::string(kind.status().message());
}

TEST(ConfigFieldsTest, AFamilyIsKnownByItsClassAndByItsTypeWhereNoClassIsNamed) {
  EXPECT_EQ(Found({{"architectures", {"TwoForCausalLM"}}, {"model_type", "one"}}), "1");
  EXPECT_EQ(Found({{"architectures", {"OneForCausalLM"}}}), "0");
  EXPECT_EQ(Found({{"model_type", "two"}}), "1");
  EXPECT_EQ(Found({{"architectures", nullptr}, {"model_type", "two"}}), "1");
}

TEST(ConfigFieldsTest, OfAnUnknownFamilyTheFieldAndAllThatAreKnownAreNamed) {
  constexpr char kExpected[] =
      "expected a supported architecture (OneForCausalLM, TwoForCausalLM), got ";
  EXPECT_EQ(Found({{"architectures", {"ThreeForCausalLM"}}, {"model_type", "one"}}),
            std::string("config.json: architectures: ") + kExpected + "[\"ThreeForCausalLM\"]");
  EXPECT_EQ(Found({{"model_type", "three"}}),
            std::string("config.json: model_type: ") + kExpected + "\"three\"");
  EXPECT_EQ(Found(json::object()),
            std::string("config.json: architectures: ") + kExpected + "nothing");
  for (const json& classes : {json(1), json("OneForCausalLM"), json::array(), json::array({1}),
                              json::object(), json::array({"OneForCausalLM", "TwoForCausalLM"})}) {
    EXPECT_THAT(Found({{"architectures", classes}, {"model_type", "one"}}),
                HasSubstr("architectures: expected a supported architecture"))
        << classes;
  }
  EXPECT_THAT(Found({{"model_type", 1}}), HasSubstr("model_type: expected a string, got 1"));
}

constexpr ModelKind kWrappedKinds[] = {
    {"OneForCausalLM", "one", "AroundForConditionalGeneration", "around"},
    {"TwoForCausalLM", "two", "AroundForConditionalGeneration", "around", "two_inside"},
    {"ThreeForCausalLM", "three"},
    {nullptr, "four", "FourForConditionalGeneration", "four_outside"}};

std::string FoundWrapped(const json& config) {
  const auto kind = FindModelKind(*JsonFields::Of(config, "config.json"), kWrappedKinds);
  EXPECT_LE(kind.status().message().size(), 300u);
  return kind.ok() ? std::to_string(*kind) : std::string(kind.status().message());
}

json Wrapped(const json& names, const json& text) {
  json config = names;
  config["text_config"] = text;
  return config;
}

TEST(WrappedKindTest, AFamilyIsFoundByItsWrapperAndTheTypeWithin) {
  const json around = {{"architectures", {"AroundForConditionalGeneration"}}};
  EXPECT_EQ(FoundWrapped(Wrapped(around, {{"model_type", "one"}})), "0");
  EXPECT_EQ(FoundWrapped(Wrapped(around, {{"model_type", "two_inside"}})), "1");
  EXPECT_EQ(FoundWrapped(Wrapped(around, json::object())), "0");
  EXPECT_EQ(FoundWrapped(Wrapped({{"model_type", "around"}}, {{"model_type", "two_inside"}})), "1");
  EXPECT_EQ(FoundWrapped(Wrapped({{"model_type", "four_outside"}}, {{"model_type", "four"}})), "3");
  // Plain files have no wrapper.
  EXPECT_EQ(FoundWrapped({{"architectures", {"TwoForCausalLM"}}, {"text_config", nullptr}}), "1");
  EXPECT_EQ(FoundWrapped({{"model_type", "four"}}), "3");
}

TEST(WrappedKindTest, RejectsAnUnknownWrapperOfAKnownModelByThatReason) {
  const json other = {{"architectures", {"OtherForConditionalGeneration"}}};
  for (const char* type : {"two", "two_inside"}) {
    EXPECT_EQ(FoundWrapped(Wrapped(other, {{"model_type", type}})),
              std::string("config.json: architectures: expected a supported class "
                          "(AroundForConditionalGeneration, FourForConditionalGeneration) around "
                          "its text_config, whose type \"") +
                  type + "\" is supported, got [\"OtherForConditionalGeneration\"]");
  }
  EXPECT_THAT(
      FoundWrapped(Wrapped({{"architectures", {"OneForCausalLM"}}}, {{"model_type", "one"}})),
      HasSubstr("around its text_config, whose type \"one\" is supported"));
  EXPECT_THAT(FoundWrapped(Wrapped({{"model_type", "other"}}, {{"model_type", "one"}})),
              HasSubstr("config.json: model_type: expected a supported class"));
  EXPECT_EQ(FoundWrapped(Wrapped(other, {{"model_type", "unknown"}})),
            "config.json: architectures: expected a supported architecture "
            "(AroundForConditionalGeneration, FourForConditionalGeneration), got "
            "[\"OtherForConditionalGeneration\"]");
  EXPECT_THAT(Found(Wrapped(other, {{"model_type", "two"}})),
              HasSubstr("expected a supported class (none) around its text_config"));
  EXPECT_THAT(Found(Wrapped(other, {{"model_type", "unknown"}})),
              HasSubstr("expected a supported architecture (OneForCausalLM, TwoForCausalLM)"));
}

TEST(WrappedKindTest, RejectsWrappersWithoutAKnownModel) {
  const json around = {{"architectures", {"AroundForConditionalGeneration"}}};
  EXPECT_EQ(FoundWrapped(Wrapped(around, {{"model_type", "three"}})),
            "config.json: text_config: model_type: expected a supported text model of "
            "AroundForConditionalGeneration (one, two_inside), got \"three\"");
  EXPECT_THAT(FoundWrapped(Wrapped(around, {{"model_type", 7}})),
              HasSubstr("config.json: text_config: model_type: expected a string, got 7"));
  EXPECT_EQ(FoundWrapped(around),
            "config.json: text_config: expected an object, as AroundForConditionalGeneration has "
            "it, got nothing");
  for (const json& text : {json(1), json("one"), json::array({1})}) {
    EXPECT_THAT(FoundWrapped(Wrapped(around, text)),
                HasSubstr("config.json: text_config: expected an object, got "));
  }
  EXPECT_THAT(FoundWrapped({{"architectures", {"x"}}}),
              HasSubstr("(OneForCausalLM, TwoForCausalLM, ThreeForCausalLM, "
                        "AroundForConditionalGeneration, FourForConditionalGeneration)"));
  const std::string longest(5000, 'x');
  FoundWrapped(Wrapped({{"architectures", {longest}}}, {{"model_type", longest}}));
  FoundWrapped(Wrapped({{"model_type", longest}}, {{"model_type", "one"}}));
}

TEST(ConfigFieldsTest, AnErrorNamesAsManyFamiliesAsFit) {
  const std::vector<ModelKind> many(50, kKinds[0]);  // 12 of "OneForCausalLM, " are 192 characters
  const json config = {{"architectures", {std::string(60, 'x')}}};
  const std::string error(
      FindModelKind(*ConfigFields(config, "config.json"), many).status().message());
  EXPECT_THAT(error, HasSubstr("OneForCausalLM and 38 more), got "));
  EXPECT_LE(error.size(), 300u);
}

TEST(ConfigFieldsTest, TakesSizesThatPythonWroteAsFloats) {
  const json config = {{"size", 64.0}, {"half", 64.5}};
  const JsonFields fields = *ConfigFields(config, "config.json");
  EXPECT_EQ(*ReadInt(fields, "size", kWidthRange), 64);
  EXPECT_EQ(ReadInt(fields, "half", kWidthRange).status().message(),
            "config.json: half: expected an integer in [1, 1048576], got 64.5");
}

TEST(ConfigFieldsTest, TypeAutoCountsAsAbsent) {
  const auto read = [](const json& config) {
    return ReadWeightDType(*ConfigFields(config, "config.json"));
  };
  EXPECT_EQ(*read({{"torch_dtype", "auto"}}), std::nullopt);
  EXPECT_EQ(*read({{"dtype", "auto"}, {"torch_dtype", "bfloat16"}}), DType::kBFloat16);
  EXPECT_EQ(*read({{"dtype", "float16"}, {"torch_dtype", "auto"}}), DType::kFloat16);
  EXPECT_FALSE(read({{"dtype", "Auto"}}).ok());
}

TEST(ConfigFieldsTest, ActivationsOfOneFunctionHaveOneName) {
  const auto read = [](const json& value) {
    const json config = {{"hidden_act", value}};
    return ReadActivationName(*ConfigFields(config, "config.json"), "hidden_act");
  };
  for (const char* name : {"silu", "swish"}) EXPECT_EQ(*read(name), "silu");
  for (const char* name : {"gelu", "gelu_python"}) EXPECT_EQ(*read(name), "gelu");
  for (const char* name : {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"}) {
    EXPECT_EQ(*read(name), "gelu_pytorch_tanh");
  }
  EXPECT_EQ(*read("quick_gelu"), "quick_gelu");
  EXPECT_EQ(*read(nullptr), std::nullopt);
  EXPECT_FALSE(read(1).ok());
}

json Text(const json& config) {
  const auto text = TextConfigOf(config);
  return text.ok() ? *text : json(std::string(text.status().message()));
}

TEST(TextConfigTest, ReturnsAPlainConfigUnchanged) {
  for (const json& config :
       {json::object(), json({{"architectures", {"OneForCausalLM"}}, {"eos_token_id", "any"}}),
        json({{"text_config", nullptr}, {"dtype", "bfloat16"}})}) {
    EXPECT_EQ(Text(config), config);
    EXPECT_FALSE(IsWrapped(config));
    EXPECT_EQ(TextConfigWhere(config), "config.json");
  }
}

TEST(TextConfigTest, ReturnsTheInnerConfigWithTheMembersThatTheOuterOneDecides) {
  const json config = {{"architectures", {"AroundForConditionalGeneration"}},
                       {"model_type", "around"},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"},
                       {"quantization_config", {{"quant_method", "fp8"}}},
                       {"eos_token_id", {1, 106}},
                       {"vocab_size", 7},
                       {"text_config",
                        {{"architectures", {"OneForCausalLM"}},
                         {"model_type", "one"},
                         {"hidden_size", 8},
                         {"tie_word_embeddings", true},
                         {"dtype", "float32"},
                         {"eos_token_id", 1}}}};
  EXPECT_EQ(Text(config), json({{"model_type", "one"},
                                {"hidden_size", 8},
                                {"tie_word_embeddings", false},
                                {"torch_dtype", "bfloat16"},
                                {"quantization_config", {{"quant_method", "fp8"}}},
                                {"eos_token_id", {1, 106}}}));
  EXPECT_TRUE(IsWrapped(config));
}

TEST(TextConfigTest, KeepsInnerMembersThatTheOuterConfigLacks) {
  const json inner = {{"tie_word_embeddings", true},
                      {"torch_dtype", "float16"},
                      {"quantization_config", {{"quant_method", "fp8"}}},
                      {"eos_token_id", 5}};
  EXPECT_EQ(Text({{"text_config", inner}}), inner);
  EXPECT_EQ(Text({{"text_config", inner},
                  {"tie_word_embeddings", nullptr},
                  {"dtype", "auto"},
                  {"torch_dtype", nullptr},
                  {"quantization_config", nullptr},
                  {"eos_token_id", nullptr}}),
            inner);
}

TEST(TextConfigTest, NamesFieldsByTheObjectThatHasThem) {
  const json config = {{"text_config", {{"hidden_size", "many"}}}, {"eos_token_id", 1}};
  const json text = Text(config);
  const JsonFields fields = *ConfigFields(text, TextConfigWhere(config));
  EXPECT_EQ(ReadInt(fields, "hidden_size", kWidthRange).status().message(),
            "config.json: text_config: hidden_size: expected an integer in [1, 1048576], got "
            "\"many\"");
  const auto error = [](const char* name, const json& value) {
    return Text({{"text_config", json::object()}, {name, value}}).get<std::string>();
  };
  EXPECT_THAT(error("tie_word_embeddings", 1), StartsWith("config.json: tie_word_embeddings: "));
  EXPECT_THAT(error("dtype", "int8"), StartsWith("config.json: dtype: "));
  EXPECT_THAT(error("eos_token_id", "x"), StartsWith("config.json: eos_token_id: "));
  EXPECT_THAT(error("quantization_config", 1), StartsWith("config.json: quantization_config: "));
}

TEST(TextConfigTest, RejectsWhatIsNoObject) {
  for (const json& value : {json(1), json("text"), json::array(), json(true)}) {
    EXPECT_THAT(Text({{"text_config", value}}).get<std::string>(),
                StartsWith("config.json: text_config: expected an object, got "));
    EXPECT_FALSE(IsWrapped({{"text_config", value}}));
    EXPECT_FALSE(IsWrapped(value));
  }
  EXPECT_EQ(Text(json::array({1})), "config.json: expected an object, got [1]");
}

}  // namespace
}  // namespace reprise
