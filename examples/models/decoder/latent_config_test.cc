#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "reprise/hf/config_fields.h"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// DeepSeek-V2-Lite as its folder has it, but dense.
json Lite() {
  return json::parse(R"({
      "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
      "first_k_dense_replace": 27, "hidden_act": "silu", "hidden_size": 2048,
      "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
      "model_type": "deepseek_v2", "n_routed_experts": 64, "num_attention_heads": 16,
      "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 10000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "v_head_dim": 128, "vocab_size": 102400})");
}

std::string ErrorWith(const std::string& name, const json& value) {
  json config = Lite();
  config[name] = value;
  const absl::StatusOr<DecoderConfig> result = ParseDecoderConfig(config);
  return result.ok() ? "no error" : std::string(result.status().message());
}

TEST(LatentConfigTest, ReadsDeepSeekV2Lite) {
  const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(Lite());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_q_heads, 16);
  EXPECT_EQ(config->latent->q_rank, std::nullopt);
  EXPECT_EQ(config->latent->kv_rank, 512);
  EXPECT_EQ(config->latent->latent_dim(), 576);
  EXPECT_EQ(config->latent->qk_dim(), 192);
  EXPECT_EQ(config->latent->v_dim, 128);
  EXPECT_EQ(config->dtype, DType::kBFloat16);
  // Both mscales are alike, so cosines stay as they are; scores do not.
  EXPECT_EQ(RopeAttentionFactor(config->rope), 1);
  const double mscale = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(*config->attention_scale, mscale * mscale / std::sqrt(192.0), 1e-12);
}

TEST(LatentConfigTest, ScoresAreScaledByTheHeadAloneWithoutYarn) {
  json config = Lite();
  config.erase("rope_scaling");
  config["q_lora_rank"] = 1536;
  const absl::StatusOr<DecoderConfig> read = ParseDecoderConfig(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->attention_scale, 1 / std::sqrt(192.0));
  EXPECT_EQ(read->latent->q_rank, 1536);
}

TEST(LatentConfigTest, RefusesWhatIsNotImplementedByName) {
  EXPECT_THAT(ErrorWith("first_k_dense_replace", 1),
              HasSubstr("moe_intermediate_size: expected an integer"));
  EXPECT_THAT(ErrorWith("quantization_config", json::object()),
              HasSubstr("quantization is not supported"));
  EXPECT_THAT(ErrorWith("hidden_act", "gelu"), HasSubstr("hidden_act: expected \"silu\""));
  EXPECT_EQ(ErrorWith("hidden_act", "swish"), "no error");
  EXPECT_EQ(ErrorWith("n_routed_experts", nullptr), "no error");
  EXPECT_THAT(ErrorWith("rope_scaling", {{"type", "dynamic"}, {"factor", 2}}),
              HasSubstr("type: expected \"default\", \"linear\", \"llama3\" or \"yarn\""));
}

TEST(LatentConfigTest, NamesEachFieldThatIsMissingOrTwisted) {
  for (const char* name :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "vocab_size",
        "max_position_embeddings", "rms_norm_eps"}) {
    for (const json& value : {json(nullptr), json(0), json(-1), json("64"), json(1e300)}) {
      EXPECT_THAT(ErrorWith(name, value), HasSubstr("config.json: " + std::string(name) + ": "))
          << value;
    }
  }
  EXPECT_THAT(ErrorWith("num_key_value_heads", 8),
              HasSubstr("num_key_value_heads: expected num_attention_heads (16), got 8"));
  EXPECT_THAT(ErrorWith("qk_rope_head_dim", 63), HasSubstr("qk_rope_head_dim: expected an even"));
  EXPECT_THAT(ErrorWith("q_lora_rank", 0), HasSubstr("q_lora_rank: expected an integer"));
  EXPECT_THAT(ErrorWith("head_dim", 128), HasSubstr("expected qk_rope_head_dim (64), got 128"));
  EXPECT_THAT(ErrorWith("qk_head_dim", 128), HasSubstr("qk_rope_head_dim (192), got 128"));
  json config = Lite();
  config.erase("q_lora_rank");
  EXPECT_EQ(ParseDecoderConfig(config).status().message(),
            "config.json: q_lora_rank: expected an integer or null, got nothing");
  config = Lite();
  config["num_attention_heads"] = config["num_key_value_heads"] = 1 << 16;
  EXPECT_THAT(std::string(ParseDecoderConfig(config).status().message()),
              HasSubstr("expected at most 4194304, got 65536 * 576"));
  EXPECT_FALSE(ParseDecoderConfig(json::array()).ok());
}

TEST(LatentConfigTest, ReadsWhichProjectionsHaveBiases) {
  json config = Lite();
  config["attention_bias"] = config["mlp_bias"] = true;
  const absl::StatusOr<DecoderConfig> read = ParseDecoderConfig(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->qkv_bias);
  EXPECT_TRUE(read->mlp_bias);
  EXPECT_THAT(ErrorWith("mlp_bias", 1), HasSubstr("mlp_bias: expected true or false"));
}

TEST(LatentConfigTest, IsKnownByItsTypeWhereNoClassIsNamed) {
  json config = Lite();
  config.erase("architectures");
  EXPECT_TRUE(ParseDecoderConfig(config).ok());
  EXPECT_TRUE(ParseDecoderConfig(config)->latent.has_value());
}

TEST(LatentConfigTest, EndsOfTextComeFromBothFiles) {
  json config = Lite();
  config["eos_token_id"] = 9;
  absl::StatusOr<DecoderConfig> read = ParseDecoderConfig(config);
  ASSERT_TRUE(read.ok()) << read.status();
  read = WithGenerationConfig(*read, {{"eos_token_id", {3, 9}}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->eos_token_ids, (std::vector<int32_t>{3, 9}));
  EXPECT_THAT(
      std::string(WithGenerationConfig(*read, {{"eos_token_id", 102400}}).status().message()),
      HasSubstr("eos_token_id"));
  EXPECT_THAT(ErrorWith("dtype", "int8"), HasSubstr("dtype: expected \"float32\""));
}

}  // namespace
}  // namespace reprise
