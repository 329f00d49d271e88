#include "reprise/models/gpt/gpt_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// openai-community/gpt2 as its folder has it, without what only other tasks use.
json Gpt2() {
  return json::parse(R"({
      "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
      "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
      "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})");
}

// bigscience/bloom-560m, with the names of its time.
json Bloom() {
  return json::parse(R"({
      "apply_residual_connection_post_layernorm": false, "architectures": ["BloomForCausalLM"],
      "attention_softmax_in_fp32": true, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05, "model_type": "bloom", "n_embed": 1024,
      "n_inner": null, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100,
      "pad_token_id": 3, "pretraining_tp": 1, "seq_length": 4096, "slow_but_exact": false,
      "unk_token_id": 0, "use_cache": true, "vocab_size": 250880})");
}

std::string ErrorWith(json config, const std::string& name, const json& value) {
  config[name] = value;
  const absl::StatusOr<GptConfig> result = ParseGptConfig(config);
  return result.ok() ? "no error" : std::string(result.status().message());
}

TEST(GptConfigTest, ReadsGpt2) {
  const absl::StatusOr<GptConfig> config = ParseGptConfig(Gpt2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, GptFamily::kGpt2);
  EXPECT_EQ(config->hidden_size, 768);
  EXPECT_EQ(config->inner_size, 3072);
  EXPECT_EQ(config->num_layers, 12);
  EXPECT_EQ(config->num_heads, 12);
  EXPECT_EQ(config->head_dim(), 64);
  EXPECT_EQ(config->max_seq_len, 1024);
  EXPECT_EQ(config->vocab_size, 50257);
  EXPECT_EQ(config->gelu, GeluForm::kTanh);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{50256}));
  EXPECT_EQ(config->dtype, std::nullopt);
}

TEST(GptConfigTest, ReadsBloomByItsNamesOldAndNew) {
  const absl::StatusOr<GptConfig> config = ParseGptConfig(Bloom());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, GptFamily::kBloom);
  EXPECT_EQ(config->hidden_size, 1024);
  EXPECT_EQ(config->inner_size, 4096);
  EXPECT_EQ(config->num_layers, 24);
  EXPECT_EQ(config->num_heads, 16);
  EXPECT_EQ(config->max_seq_len, 4096);
  json renamed = Bloom();
  for (const auto& [old_name, name] :
       {std::pair("n_embed", "hidden_size"), std::pair("num_attention_heads", "n_head")}) {
    renamed[name] = renamed[old_name];
    renamed.erase(old_name);
  }
  renamed.erase("seq_length");
  const absl::StatusOr<GptConfig> other = ParseGptConfig(renamed);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->hidden_size, 1024);
  EXPECT_EQ(other->num_heads, 16);
  EXPECT_EQ(other->max_seq_len, 2048);
}

TEST(GptConfigTest, OtherActivationsAndSizesOfTheFeedForward) {
  json config = Gpt2();
  config["activation_function"] = "gelu";
  config["n_inner"] = 100;
  config["tie_word_embeddings"] = false;
  const absl::StatusOr<GptConfig> parsed = ParseGptConfig(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->gelu, GeluForm::kErf);
  EXPECT_EQ(parsed->inner_size, 100);
  EXPECT_FALSE(parsed->tie_word_embeddings);
}

TEST(GptConfigTest, WhatIsNotImplementedIsRefusedByName) {
  for (const auto& [name, value, expected] :
       std::vector<std::tuple<const char*, json, const char*>>{
           {"activation_function", "relu", "a supported activation"},
           {"scale_attn_weights", false, "true"},
           {"scale_attn_by_inverse_layer_idx", true, "false"},
           {"add_cross_attention", true, "false"},
           {"quantization_config", json{{"quant_method", "gptq"}}, ""},
           {"n_head", 5, "a divisor of the hidden size (768)"},
           {"n_embd", 0, "an integer in [1, "},
           {"n_positions", -1, "an integer in [1, "},
           {"layer_norm_epsilon", 0.0, ""},
           {"vocab_size", "many", "an integer in [1, "},
           {"architectures", json::array({"T5Model"}), ""}}) {
    const std::string error = ErrorWith(Gpt2(), name, value);
    EXPECT_THAT(error, HasSubstr(name));
    EXPECT_THAT(error, HasSubstr(expected));
  }
  EXPECT_THAT(ErrorWith(Bloom(), "apply_residual_connection_post_layernorm", true),
              HasSubstr("apply_residual_connection_post_layernorm: expected false"));
  EXPECT_THAT(ErrorWith(Bloom(), "num_attention_heads", 10),
              HasSubstr("num_attention_heads: expected a divisor of the hidden size (1024)"));
}

}  // namespace
}  // namespace reprise
