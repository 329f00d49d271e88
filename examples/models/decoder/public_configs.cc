#include "reprise/models/decoder/public_configs.h"

#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

struct NamedConfig {
  const char* name;
  const char* text;
};

constexpr std::array kConfigs = {
    NamedConfig{"llama-3.1-8b", R"({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
        "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256})"},
    NamedConfig{"llama-3.1-70b", R"({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 8192,
        "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 131072,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 64,
        "num_hidden_layers": 80, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})"},
    NamedConfig{"llama-3.2-1b", R"({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
        "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
        "vocab_size": 128256})"},
    NamedConfig{"jargon", R"({
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 0, "dtype": "bfloat16",
        "eos_token_id": 1, "head_dim": 64, "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 768, "max_position_embeddings": 2048, "model_type": "llama",
        "num_attention_heads": 8, "num_hidden_layers": 6, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": true, "vocab_size": 4096})"},
    NamedConfig{"qwen3-8b", R"({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
        "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936})"},
    NamedConfig{"qwen2.5-7b", R"({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
        "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064})"},
    NamedConfig{"mistral-7b", R"({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})"},
    NamedConfig{"gemma-2-2b", R"({
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
        "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
        "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4",
        "use_cache": true, "vocab_size": 256000})"},
};

}  // namespace

std::vector<std::string_view> PublicConfigNames() {
  std::vector<std::string_view> names;
  for (const NamedConfig& config : kConfigs) names.push_back(config.name);
  return names;
}

absl::StatusOr<nlohmann::json> PublicConfig(std::string_view name) {
  std::string names;
  for (const NamedConfig& config : kConfigs) {
    if (name == config.name) return nlohmann::json::parse(config.text);
    absl::StrAppend(&names, names.empty() ? "" : ", ", config.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("model: expected ", names, ", got ", std::string(name)));
}

absl::StatusOr<DecoderConfig> LlamaPreset(std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json config, PublicConfig(name));
  return ParseDecoderConfig(config);
}

nlohmann::json InSmall(nlohmann::json config) {
  config["hidden_size"] = 96;
  config["intermediate_size"] = 112;
  config["num_hidden_layers"] = 2;
  config["num_attention_heads"] = 8;
  config["num_key_value_heads"] = 4;
  config["head_dim"] = 16;
  config["vocab_size"] = 64;
  config["max_position_embeddings"] = 256;
  config["bos_token_id"] = 1;
  config["eos_token_id"] = 2;
  // Null members stay null.
  if (config.contains("sliding_window") && !config["sliding_window"].is_null()) {
    config["sliding_window"] = 64;
  }
  return config;
}

}  // namespace reprise
