#include "reprise/models/decoder/decoder_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Llama 3.2 1B, as its folder has it.
json Llama32() {
  return json::parse(R"({
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
      "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
      "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
      "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

std::string ErrorOf(const json& config) {
  const absl::StatusOr<DecoderConfig> result = ParseDecoderConfig(config);
  if (result.ok()) return "no error";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

std::string ErrorWith(const std::string& name, const json& value) {
  json config = Llama32();
  config[name] = value;
  return ErrorOf(config);
}

TEST(DecoderConfigTest, ReadsLlama32) {
  const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(Llama32());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden_size, 2048);
  EXPECT_EQ(config->intermediate_size, 8192);
  EXPECT_EQ(config->num_layers, 16);
  EXPECT_EQ(config->num_q_heads, 32);
  EXPECT_EQ(config->num_kv_heads, 8);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->vocab_size, 128256);
  EXPECT_EQ(config->max_seq_len, 131072);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->o_bias);
  EXPECT_FALSE(config->mlp_bias);
  EXPECT_TRUE(config->rope == (RopeConfig{.theta = 5e5, .scaling = Llama3Rope{.factor = 32}}));
  EXPECT_EQ(config->dtype, DType::kBFloat16);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(128001));
}

TEST(DecoderConfigTest, FieldsThatAreCustomarilyLeftOutHaveDefaults) {
  json small = Llama32();
  for (const char* name : {"attention_bias", "bos_token_id", "eos_token_id", "head_dim",
                           "hidden_act", "mlp_bias", "num_key_value_heads", "rope_scaling",
                           "rope_theta", "tie_word_embeddings", "torch_dtype", "model_type"}) {
    small.erase(name);
  }
  const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(small);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 32);
  EXPECT_EQ(config->head_dim, 64);  // 2048 / 32
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_FALSE(config->o_bias);
  EXPECT_TRUE(config->rope == RopeConfig());
  EXPECT_EQ(config->dtype, std::nullopt);
  EXPECT_THAT(config->eos_token_ids, IsEmpty());
}

TEST(DecoderConfigTest, NullIsAsGoodAsNothing) {
  json config = Llama32();
  config["head_dim"] = nullptr;
  config["num_key_value_heads"] = nullptr;
  config["quantization_config"] = nullptr;
  ASSERT_EQ(ErrorOf(config), "no error");
  EXPECT_EQ(ParseDecoderConfig(config)->num_kv_heads, 32);
}

TEST(DecoderConfigTest, TheTypeHasTwoNames) {
  json config = Llama32();
  config["dtype"] = "float16";
  EXPECT_EQ(ParseDecoderConfig(config)->dtype, DType::kFloat16);  // the newer name goes first
  config["dtype"] = "int8";
  EXPECT_THAT(ErrorOf(config), HasSubstr("dtype: expected \"float32\""));
  config["dtype"] = "float8_e4m3fn";
  EXPECT_THAT(ErrorOf(config), HasSubstr("got \"float8_e4m3fn\""));
}

TEST(DecoderConfigTest, HeadsNeedNotFillTheHiddenSize) {
  json config = Llama32();
  config["hidden_size"] = 70;
  config["num_attention_heads"] = 9;
  config["num_key_value_heads"] = 3;
  config["head_dim"] = 80;
  EXPECT_EQ(ErrorOf(config), "no error");
  EXPECT_EQ(ParseDecoderConfig(config)->head_dim, 80);
}

TEST(DecoderConfigTest, RefusesAnotherArchitectureInOneSentence) {
  // The list is cut.
  const std::string supported =
      "expected a supported architecture (LlamaForCausalLM, MistralForCausalLM, "
      "Ministral3ForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Phi3ForCausalLM, "
      "GraniteForCausalLM, SeedOssForCausalLM, Llama4ForCausalLM, GemmaForCausalLM and 13 more), "
      "got ";
  EXPECT_EQ(ErrorWith("architectures", {"GPT2LMHeadModel"}),
            "config.json: architectures: " + supported + "[\"GPT2LMHeadModel\"]");
  for (const json& value : {json("LlamaForCausalLM"), json::array(), json(1), json::object(),
                            json({"LlamaForCausalLM", "X"})}) {
    EXPECT_THAT(ErrorWith("architectures", value), HasSubstr("expected a supported architecture"))
        << value;
  }
  json config = Llama32();
  config.erase("architectures");
  EXPECT_EQ(ErrorOf(config), "no error");  // model_type is enough
  config["model_type"] = "mamba";
  EXPECT_EQ(ErrorOf(config), "config.json: model_type: " + supported + "\"mamba\"");
  config.erase("model_type");
  EXPECT_THAT(ErrorOf(config), HasSubstr("architectures: " + supported + "nothing"));
}

TEST(DecoderConfigTest, NamesEachFieldThatIsMissing) {
  for (const char* name :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "max_position_embeddings", "rms_norm_eps"}) {
    json config = Llama32();
    config.erase(name);
    EXPECT_THAT(ErrorOf(config), HasSubstr("config.json: " + std::string(name) + ": expected "))
        << name;
    EXPECT_THAT(ErrorOf(config), HasSubstr(", got nothing")) << name;
  }
}

TEST(DecoderConfigTest, NamesEachIntegerThatIsNone) {
  for (const char* name :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "vocab_size", "max_position_embeddings", "num_key_value_heads", "head_dim"}) {
    for (const json& value :
         {json(0), json(-1), json(int64_t{1} << 40), json(UINT64_MAX), json(64.5), json(1e300),
          json("64"), json("NaN"), json(true), json::array({64}), json::object()}) {
      EXPECT_THAT(ErrorWith(name, value),
                  HasSubstr("config.json: " + std::string(name) + ": expected an integer in ["))
          << value;
    }
  }
}

TEST(DecoderConfigTest, NamesOtherFieldsOfAWrongTypeOrRange) {
  EXPECT_THAT(ErrorWith("rms_norm_eps", 0),
              HasSubstr("rms_norm_eps: expected a number in [1e-12, 1], got 0"));
  EXPECT_THAT(ErrorWith("rms_norm_eps", "1e-5"), HasSubstr("rms_norm_eps: expected a number"));
  EXPECT_THAT(ErrorWith("tie_word_embeddings", 1),
              HasSubstr("tie_word_embeddings: expected true or false, got 1"));
  EXPECT_THAT(ErrorWith("attention_bias", "no"),
              HasSubstr("attention_bias: expected true or false"));
  EXPECT_THAT(ErrorWith("mlp_bias", 0.0), HasSubstr("mlp_bias: expected true or false"));
  EXPECT_EQ(ErrorWith("hidden_act", "gelu"),
            "config.json: hidden_act: expected \"silu\" or \"gelu_pytorch_tanh\", got \"gelu\"");
  EXPECT_THAT(ErrorWith("torch_dtype", 16), HasSubstr("torch_dtype: expected a string"));
  EXPECT_THAT(ErrorWith("quantization_config", {{"quant_method", "gptq"}}),
              HasSubstr("quantization is not supported"));
  EXPECT_EQ(ErrorWith("quantization_config", {{"quant_method", "fp8"}}), "no error");
  EXPECT_THAT(ErrorOf(json::array()), HasSubstr("config.json: expected an object, got []"));
}

TEST(DecoderConfigTest, NamesNumbersThatContradictEachOther) {
  EXPECT_EQ(
      ErrorWith("num_key_value_heads", 5),
      "config.json: num_key_value_heads: expected a divisor of num_attention_heads (32), got 5");
  EXPECT_THAT(ErrorWith("num_key_value_heads", 64), HasSubstr("expected a divisor"));
  EXPECT_EQ(ErrorWith("head_dim", 65), "config.json: head_dim: expected an even number, got 65");
  json config = Llama32();
  config.erase("head_dim");
  config["hidden_size"] = 2047;
  EXPECT_EQ(ErrorOf(config),
            "config.json: hidden_size: expected a multiple of num_attention_heads (32), got 2047");
  config["hidden_size"] = 32 * 63;
  EXPECT_EQ(ErrorOf(config), "config.json: head_dim: expected an even number, got 63");
  config["num_attention_heads"] = config["num_key_value_heads"] = 65536;
  config["head_dim"] = 4096;
  EXPECT_THAT(
      ErrorOf(config),
      HasSubstr("num_attention_heads * head_dim: expected at most 4194304, got 65536 * 4096"));
}

TEST(DecoderConfigTest, NamesTokensOutsideTheVocabulary) {
  for (const json& value : {json(-1), json(128256), json(1.5), json("</s>"),
                            json::array({1, 128256}), json::array({"1"})}) {
    EXPECT_THAT(ErrorWith("eos_token_id", value),
                HasSubstr("eos_token_id: expected an integer or a list of integers in [0, 128255]"))
        << value;
  }
  EXPECT_EQ(ErrorWith("eos_token_id", json::array()), "no error");
}

TEST(DecoderConfigTest, IgnoresTheTokenThatNothingUses) {
  for (const json& value :
       {json(-1), json(128256), json::array({1, 2}), json("<s>"), json(nullptr), json(1e300)}) {
    EXPECT_EQ(ErrorWith("bos_token_id", value), "no error") << value;
  }
}

TEST(DecoderConfigTest, ReadsOtherFormsOfTheSameConfig) {
  json other = Llama32();
  other["hidden_size"] = 2048.0;
  other["num_hidden_layers"] = 1.6e1;
  other["eos_token_id"] = {128001.0};
  other["rope_scaling"]["original_max_position_embeddings"] = 8192.0;
  other["hidden_act"] = "swish";
  other["dtype"] = "auto";
  const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(other);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden_size, 2048);
  EXPECT_EQ(config->num_layers, 16);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(128001));
  EXPECT_TRUE(config->rope == (RopeConfig{.theta = 5e5, .scaling = Llama3Rope{.factor = 32}}));
  EXPECT_EQ(config->activation, Activation::kSilu);
  EXPECT_EQ(config->dtype, DType::kBFloat16);
}

TEST(DecoderConfigTest, EndTokensOfBothFilesAreJoined) {
  json json_config = Llama32();
  json_config["eos_token_id"] = {128009, 128001};
  const DecoderConfig config = *ParseDecoderConfig(json_config);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(128001, 128009));
  const auto joined = [&](const json& ids) {
    return WithGenerationConfig(config, {{"eos_token_id", ids}});
  };
  EXPECT_THAT(joined(json::array({128008, 128001}))->eos_token_ids,
              ElementsAre(128001, 128008, 128009));
  EXPECT_THAT(joined(7)->eos_token_ids, ElementsAre(7, 128001, 128009));
  EXPECT_THAT(joined(nullptr)->eos_token_ids, ElementsAre(128001, 128009));
  EXPECT_THAT(joined(-1).status().message(),
              HasSubstr("generation_config.json: eos_token_id: expected"));
  EXPECT_FALSE(WithGenerationConfig(config, json::array()).ok());
}

TEST(DecoderConfigTest, SurvivesEveryTruncationAndRandomBytes) {
  const std::string text = Llama32().dump();
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_FALSE(ParseJson(text.substr(0, length)).ok()) << length;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = text;
    for (int i = 1 + random() % 3; i > 0; --i)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 95 + 32);
    const absl::StatusOr<json> value = ParseJson(damaged);
    if (!value.ok()) continue;
    const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(*value);
    if (!config.ok()) continue;
    EXPECT_EQ(config->num_q_heads % config->num_kv_heads, 0) << damaged;
    EXPECT_EQ(RopeFrequencies(config->rope, config->head_dim).size() * 2,
              static_cast<size_t>(config->head_dim));
  }
}

class LoadDecoderConfigTest : public testing::Test {
 protected:
  LoadDecoderConfigTest() : folder_(testing::TempDir() + "/config.XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  std::string folder_;
};

TEST_F(LoadDecoderConfigTest, ReadsBothFiles) {
  Write("config.json", Llama32().dump());
  EXPECT_THAT(LoadDecoderConfig(folder_)->eos_token_ids, ElementsAre(128001));
  Write("generation_config.json", R"({"eos_token_id": [128009]})");
  EXPECT_THAT(LoadDecoderConfig(folder_)->eos_token_ids, ElementsAre(128001, 128009));
}

TEST_F(LoadDecoderConfigTest, ReadsNumbersThatOnlyPythonWrites) {
  std::string text = Llama32().dump();
  text.back() = ',';
  Write("config.json", text + R"("time_step_limit": [0.0, Infinity], "other": NaN})");
  EXPECT_EQ(LoadDecoderConfig(folder_)->num_layers, 16);
  Write("config.json", text + R"("rope_theta_": -Infinity, "head_dim": Infinity})");
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr("\"head_dim\" occurs twice"));
  text.replace(text.find("1e-05"), 5, "Infinity");
  Write("config.json", text + R"("other": NaN})");
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr("rms_norm_eps: expected a number in [1e-12, 1], got Infinity"));
}

TEST_F(LoadDecoderConfigTest, NamesTheFileInItsErrors) {
  EXPECT_EQ(LoadDecoderConfig(folder_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr(folder_ + "/config.json: No such file"));
  Write("config.json", "{");
  EXPECT_EQ(LoadDecoderConfig(folder_).status().message(),
            folder_ +
                "/config.json: not valid JSON at line 1, column 2: expected a name, "
                "got end of input");
  Write("config.json", "{}");
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr(folder_ + "/config.json: architectures: expected"));
  Write("config.json", Llama32().dump());
  Write("generation_config.json", "");
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr("generation_config.json: the file is empty"));
  Write("generation_config.json", R"({"eos_token_id": 1e9})");
  EXPECT_THAT(LoadDecoderConfig(folder_).status().message(),
              HasSubstr(folder_ + "/generation_config.json: eos_token_id: expected"));
}

}  // namespace
}  // namespace reprise
