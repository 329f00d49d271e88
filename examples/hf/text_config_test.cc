#include "reprise/hf/text_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/config_fields.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::StartsWith;

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
