#include "reprise/models/bart/bart_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// facebook/bart-large-cnn as its folder has it, without what only other tasks use.
json LargeCnn() {
  return json::parse(R"({
      "activation_dropout": 0.0, "activation_function": "gelu", "add_final_layer_norm": false,
      "architectures": ["BartForConditionalGeneration"], "attention_dropout": 0.0,
      "bos_token_id": 0, "d_model": 1024, "decoder_attention_heads": 16,
      "decoder_ffn_dim": 4096, "decoder_layers": 12, "decoder_start_token_id": 2,
      "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layers": 12,
      "eos_token_id": 2, "is_encoder_decoder": true, "max_position_embeddings": 1024,
      "model_type": "bart", "normalize_before": false, "num_hidden_layers": 12,
      "pad_token_id": 1, "scale_embedding": false, "torch_dtype": "float32",
      "use_cache": true, "vocab_size": 50264})");
}

std::string ErrorOf(const json& config) {
  const absl::StatusOr<BartConfig> result = ParseBartConfig(config);
  return result.ok() ? "no error" : std::string(result.status().message());
}

std::string ErrorWith(const std::string& name, const json& value) {
  json config = LargeCnn();
  config[name] = value;
  return ErrorOf(config);
}

TEST(BartConfigTest, ReadsBartLarge) {
  const absl::StatusOr<BartConfig> config = ParseBartConfig(LargeCnn());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->d_model, 1024);
  EXPECT_EQ(config->vocab_size, 50264);
  EXPECT_EQ(config->max_seq_len, 1024);
  for (const BartStackConfig& stack : {config->encoder, config->decoder}) {
    EXPECT_EQ(stack.num_layers, 12);
    EXPECT_EQ(stack.num_heads, 16);
    EXPECT_EQ(stack.ffn_dim, 4096);
  }
  EXPECT_FALSE(config->scale_embedding);
  EXPECT_EQ(config->decoder_start_token_id, 2);
  EXPECT_EQ(config->dtype, DType::kFloat32);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{2}));
}

TEST(BartConfigTest, ReadsAModelThatWasSavedWithoutItsHead) {
  EXPECT_EQ(ErrorWith("architectures", {"BartModel"}), "no error");
  EXPECT_THAT(ErrorWith("architectures", {"BartForCausalLM"}),
              HasSubstr("expected a supported architecture"));
}

TEST(BartConfigTest, StacksMayDiffer) {
  json config = LargeCnn();
  config["decoder_layers"] = 3;
  config["decoder_attention_heads"] = 8;
  config["decoder_ffn_dim"] = 2048;
  config["scale_embedding"] = true;
  const absl::StatusOr<BartConfig> read = ParseBartConfig(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->encoder.num_layers, 12);
  EXPECT_EQ(read->decoder.num_layers, 3);
  EXPECT_EQ(read->encoder.num_heads, 16);
  EXPECT_EQ(read->decoder.num_heads, 8);
  EXPECT_EQ(read->decoder.ffn_dim, 2048);
  EXPECT_TRUE(read->scale_embedding);
}

TEST(BartConfigTest, RefusesWhatIsNotImplementedByName) {
  EXPECT_EQ(ErrorWith("activation_function", "relu"),
            "config.json: activation_function: expected a supported activation (\"gelu\"), got "
            "\"relu\"");
  EXPECT_THAT(ErrorWith("activation_function", 3), HasSubstr("activation_function: expected"));
  EXPECT_EQ(ErrorWith("architectures", {"MBartForConditionalGeneration"}),
            "config.json: architectures: expected a supported architecture "
            "(BartForConditionalGeneration, BartModel), got [\"MBartForConditionalGeneration\"]");
  EXPECT_EQ(ErrorWith("tie_word_embeddings", false),
            "config.json: tie_word_embeddings: expected true, the only one that is supported, got "
            "false");
  EXPECT_EQ(ErrorWith("normalize_before", true),
            "config.json: normalize_before: expected false, the only one that is supported, got "
            "true");
  EXPECT_THAT(ErrorWith("add_final_layer_norm", true), HasSubstr("add_final_layer_norm: "));
  EXPECT_THAT(ErrorWith("static_position_embeddings", true), HasSubstr("static_position_emb"));
  EXPECT_THAT(ErrorWith("normalize_embedding", false), HasSubstr("normalize_embedding: "));
  EXPECT_THAT(ErrorWith("is_encoder_decoder", false), HasSubstr("is_encoder_decoder: "));
  EXPECT_THAT(ErrorWith("quantization_config", json::object()),
              HasSubstr("quantization is not supported"));
}

TEST(BartConfigTest, NamesEachFieldThatIsMissingOrTwisted) {
  for (const char* name : {"d_model", "vocab_size", "max_position_embeddings", "encoder_layers",
                           "encoder_attention_heads", "encoder_ffn_dim", "decoder_layers",
                           "decoder_attention_heads", "decoder_ffn_dim"}) {
    for (const json& value : {json(nullptr), json(0), json(-1), json("64"), json(1e300)}) {
      EXPECT_THAT(ErrorWith(name, value), HasSubstr("config.json: " + std::string(name) + ": "))
          << value;
    }
    json config = LargeCnn();
    config.erase(name);
    EXPECT_THAT(ErrorOf(config), HasSubstr("config.json: " + std::string(name) + ": expected "));
  }
  EXPECT_THAT(ErrorWith("scale_embedding", 1), HasSubstr("scale_embedding: expected true or"));
  EXPECT_THAT(ErrorWith("dtype", "int8"), HasSubstr("dtype: expected \"float32\""));
  EXPECT_FALSE(ParseBartConfig(json::array()).ok());
}

TEST(BartConfigTest, HeadsDivideTheModel) {
  EXPECT_EQ(ErrorWith("encoder_attention_heads", 3),
            "config.json: encoder_attention_heads: expected a divisor of d_model (1024), got 3");
  EXPECT_EQ(ErrorWith("decoder_attention_heads", 2048),
            "config.json: decoder_attention_heads: expected a divisor of d_model (1024), got 2048");
}

TEST(BartConfigTest, TheFirstTokenIsInTheVocabulary) {
  EXPECT_THAT(ErrorWith("decoder_start_token_id", 50264), HasSubstr("decoder_start_token_id: "));
  EXPECT_THAT(ErrorWith("decoder_start_token_id", -1), HasSubstr("decoder_start_token_id: "));
  json config = LargeCnn();
  config.erase("decoder_start_token_id");
  const absl::StatusOr<BartConfig> read = ParseBartConfig(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->decoder_start_token_id, 2);  // transformers' default
  config.erase("eos_token_id");
  config["vocab_size"] = 2;
  EXPECT_EQ(ErrorOf(config),
            "config.json: decoder_start_token_id: expected an integer in [0, 1], got nothing");
}

TEST(BartConfigTest, TheGenerationConfigHasTheLastWord) {
  absl::StatusOr<BartConfig> read = ParseBartConfig(LargeCnn());
  ASSERT_TRUE(read.ok()) << read.status();
  read = WithGenerationConfig(*read, {{"eos_token_id", {3, 2}}, {"decoder_start_token_id", 7}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->eos_token_ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(read->decoder_start_token_id, 7);
  const absl::StatusOr<BartConfig> same = WithGenerationConfig(*read, json::object());
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->decoder_start_token_id, 7);
  EXPECT_THAT(
      std::string(
          WithGenerationConfig(*read, {{"decoder_start_token_id", 50264}}).status().message()),
      HasSubstr("generation_config.json: decoder_start_token_id: expected an integer"));
}

TEST(BartConfigTest, IsKnownByItsTypeWhereNoClassIsNamed) {
  json config = LargeCnn();
  config.erase("architectures");
  EXPECT_EQ(ErrorOf(config), "no error");
  config["model_type"] = "mbart";
  EXPECT_EQ(ErrorOf(config),
            "config.json: model_type: expected a supported architecture "
            "(BartForConditionalGeneration, BartModel), got \"mbart\"");
}

}  // namespace
}  // namespace reprise
