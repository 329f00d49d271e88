#include "reprise/models/decoder/decoder_families.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/models/decoder/family_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr DoubleRange kSoftcapRange = {.min = 1e-3, .max = 1e6};

absl::StatusOr<std::optional<double>> ReadSoftcap(const JsonFields& fields, const char* name,
                                                  double absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> cap,
                           fields.OptionalDouble(name, kSoftcapRange));
  if (cap || fields.object().contains(name)) return cap;
  return std::optional(absent);
}

absl::Status ReadLlama(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  REPRISE_ASSIGN_OR_RETURN(config.mlp_bias, ReadFlag(fields, "mlp_bias", false));
  return absl::OkStatus();
}

absl::Status ReadMistral(const JsonFields& fields, DecoderConfig& config) {
  return ReadWindowOfAllLayers(fields, 4096, config);
}

absl::Status ReadMinistral3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadWindowOfAllLayers(fields, std::nullopt, config));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> rope, RopeForm(fields));
  // transformers has a YaRN and a temperature as the class's default.
  if (!rope) return fields.Unexpected("rope_parameters", "an object");
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> beta,
                           rope->OptionalDouble("llama_4_scaling_beta", {.min = 0, .max = 1e3}));
  if (!beta) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const int64_t original, rope->Int("original_max_position_embeddings",
                                                             {.min = 1, .max = 1 << 28}));
  config.temperature = QueryTemperature{.attn_scale = static_cast<float>(*beta),
                                        .floor_scale = static_cast<float>(original),
                                        .position_offset = 0};
  config.tempers_all_layers = true;
  return absl::OkStatus();
}

absl::Status ReadQwen2(const JsonFields& fields, DecoderConfig& config) {
  config.qkv_bias = true;
  return ReadQwenWindows(fields, config);
}

absl::Status ReadQwen3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  config.qk_norm = QkNorm::kWeighted;
  return ReadQwenWindows(fields, config);
}

// The text model of Qwen3-VL has no windows.
absl::Status ReadQwen3Vl(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "use_sliding_window", false));
  return ReadQwen3(fields, config);
}

absl::Status ReadPhi3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "attention_bias", false));
  // transformers knows longrope alone.
  if (!std::holds_alternative<DefaultRope>(config.rope.scaling)) {
    return fields.Unexpected(
        fields.Find("rope_scaling") != nullptr ? "rope_scaling" : "rope_parameters", "no scaling");
  }
  config.names.is_fused = true;
  return ReadWindowOfAllLayers(fields, std::nullopt, config);
}

absl::Status ReadSeedOss(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", true));
  REPRISE_ASSIGN_OR_RETURN(config.o_bias, ReadFlag(fields, "attention_out_bias", false));
  REPRISE_ASSIGN_OR_RETURN(config.mlp_bias, ReadFlag(fields, "mlp_bias", false));
  return absl::OkStatus();
}

absl::Status ReadGranite(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadLlama(fields, config));
  REPRISE_ASSIGN_OR_RETURN(config.embedding_scale, ReadMultiplier(fields, "embedding_multiplier"));
  REPRISE_ASSIGN_OR_RETURN(config.residual_scale, ReadMultiplier(fields, "residual_multiplier"));
  REPRISE_ASSIGN_OR_RETURN(config.logit_divisor, ReadMultiplier(fields, "logits_scaling"));
  REPRISE_ASSIGN_OR_RETURN(config.attention_scale, ReadMultiplier(fields, "attention_multiplier"));
  return absl::OkStatus();
}

absl::Status RefuseExperts(const JsonFields& fields, const DecoderConfig& config) {
  constexpr char kExpected[] = "[], as mixtures of experts are not supported";
  if (fields.Find("moe_layers") != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(const json* const layers, fields.Array("moe_layers"));
    return layers->empty() ? absl::OkStatus() : fields.Unexpected("moe_layers", kExpected);
  }
  // Every `step` layers one is a mixture, the first at step - 1.
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> step,
      fields.OptionalInt("interleave_moe_layer_step", {.min = 1, .max = 1 << 20}));
  if (step.value_or(1) > config.num_layers) return absl::OkStatus();
  return fields.Unexpected("moe_layers", kExpected);
}

// Whether each layer rotates.
absl::StatusOr<std::vector<bool>> ReadRotatingLayers(const JsonFields& fields,
                                                     const DecoderConfig& config) {
  std::vector<int64_t> flags;
  if (fields.Find("no_rope_layers") != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(flags, fields.Ints("no_rope_layers", {.min = 0, .max = 1}));
  }
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> interval,
      fields.OptionalInt("no_rope_layer_interval", {.min = 1, .max = 1 << 20}));
  if (!flags.empty() && static_cast<int>(flags.size()) < config.num_layers) {
    return fields.Unexpected(
        "no_rope_layers",
        absl::StrCat("0 or 1 for each of num_hidden_layers (", config.num_layers, ") layers"));
  }
  std::vector<bool> rotates;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    rotates.push_back(flags.empty() ? (layer + 1) % interval.value_or(4) != 0 : flags[layer] != 0);
  }
  return rotates;
}

// A flag that early files have as a number.
absl::StatusOr<bool> ReadTemperatureFlag(const JsonFields& fields) {
  constexpr char kName[] = "attn_temperature_tuning";
  const json* const value = fields.Find(kName);
  if (value != nullptr && value->is_number()) return *value != 0;
  return ReadFlag(fields, kName, true);
}

absl::StatusOr<std::optional<QueryTemperature>> ReadTemperature(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(const bool tunes, ReadTemperatureFlag(fields));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> scale,
                           fields.OptionalDouble("attn_scale", {.min = 0, .max = 1e3}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> floor,
                           fields.OptionalDouble("floor_scale", {.min = 1, .max = 1 << 28}));
  if (!tunes) return std::optional<QueryTemperature>();
  return std::optional(QueryTemperature{.attn_scale = static_cast<float>(scale.value_or(0.1)),
                                        .floor_scale = static_cast<float>(floor.value_or(8192))});
}

absl::Status ReadLlama4(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(RefuseExperts(fields, config));
  // The size of dense layers; intermediate_size is that of an expert.
  REPRISE_ASSIGN_OR_RETURN(const int64_t width,
                           fields.Int("intermediate_size_mlp", {.min = 1, .max = 1 << 20}));
  config.intermediate_size = static_cast<int>(width);
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  config.names.mlp = "feed_forward";
  config.rope_pairs = RopePairs::kNeighbours;
  REPRISE_ASSIGN_OR_RETURN(const bool norms, ReadFlag(fields, "use_qk_norm", true));
  if (norms) config.qk_norm = QkNorm::kPlain;
  REPRISE_ASSIGN_OR_RETURN(config.temperature, ReadTemperature(fields));

  REPRISE_ASSIGN_OR_RETURN(const std::vector<bool> rotates, ReadRotatingLayers(fields, config));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> chunked,
                           ReadLocalLayers(fields, config, "chunked_attention"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int> chunk,
                           ReadSpan(fields, "attention_chunk_size", 8192));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerAttention attention = {.rotates = rotates[layer]};
    if (chunked ? (*chunked)[layer] : rotates[layer]) {
      if (!chunk) {
        return fields.Unexpected("attention_chunk_size", "a number, as there are chunked layers");
      }
      attention.chunk = chunk;
    }
    config.attention.push_back(attention);
  }
  return absl::OkStatus();
}

// What all Gemmas have.
absl::Status ReadGemma(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "use_bidirectional_attention", false));
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  config.norm_weight = NormWeight::kOnePlus;
  config.embedding_scale = std::sqrt(double{1} * config.hidden_size);
  config.rounds_embedding_scale = true;
  return absl::OkStatus();
}

// Files of the first Gemma have "hidden_act", of which "gelu" means the tanh form. transformers 5
// reads only that member.
absl::Status ReadGemma1(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                           ReadActivationName(fields, "hidden_act"));
  if (name.value_or("gelu") != "gelu" && *name != "gelu_pytorch_tanh") {
    return fields.Unexpected("hidden_act", "\"gelu\" or \"gelu_pytorch_tanh\"");
  }
  return ReadGemma(fields, config);
}

// What Gemma 2 and later ones have beside.
absl::Status ReadLaterGemma(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadGemma(fields, config));
  config.names = kNormsBeforeAndAfter;
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<double> pre_scalar,
      fields.OptionalDouble("query_pre_attn_scalar", {.min = 1e-3, .max = 1e6}));
  config.attention_scale = 1 / std::sqrt(pre_scalar.value_or(256));
  return absl::OkStatus();
}

absl::Status ReadGemma2(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadLaterGemma(fields, config));
  REPRISE_ASSIGN_OR_RETURN(config.attention_softcap,
                           ReadSoftcap(fields, "attn_logit_softcapping", 50));
  REPRISE_ASSIGN_OR_RETURN(config.logit_softcap,
                           ReadSoftcap(fields, "final_logit_softcapping", 30));

  return ReadAlternatingWindows(fields, 4096, config);
}

absl::Status ReadGemma3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadLaterGemma(fields, config));
  config.qk_norm = QkNorm::kWeighted;
  REPRISE_ASSIGN_OR_RETURN(config.attention_softcap,
                           fields.OptionalDouble("attn_logit_softcapping", kSoftcapRange));
  REPRISE_ASSIGN_OR_RETURN(config.logit_softcap,
                           fields.OptionalDouble("final_logit_softcapping", kSoftcapRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int> window,
                           ReadSpan(fields, "sliding_window", 4096));
  // transformers 5 writes the second, beside layer_types.
  int64_t interval = 6;
  for (const char* const name : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> given,
                             fields.OptionalInt(name, {.min = 1, .max = 1 << 20}));
    interval = given.value_or(interval);
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> local,
                           ReadLocalLayers(fields, config, "sliding_attention"));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool is_local = local ? (*local)[layer] : (layer + 1) % interval != 0;
    if (is_local && !window) {
      return fields.Unexpected("sliding_window", "a number, as there are layers with a window");
    }
    config.attention.push_back(is_local ? LayerAttention{.window = window} : LayerAttention());
  }
  return absl::OkStatus();
}

// The second repeats the config's member, and is in the defaults of transformers' class.
constexpr std::string_view kMinistralRope[] = {"llama_4_scaling_beta", "max_position_embeddings"};
// Sections of the rotation for the axes of an image; the positions of text are the same in all.
constexpr std::string_view kQwenVlRope[] = {"mrope_section", "mrope_interleaved"};

constexpr char kGemmaDefaults[] =
    R"({"head_dim": 256, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh"})";
// Published text_configs leave out what Gemma3TextConfig has as its defaults.
constexpr char kGemma3Defaults[] =
    R"({"head_dim": 256, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6})";

// Wraps Mistral Small 3.1 and later ones, and Ministral 3.
constexpr char kMistral3Class[] = "Mistral3ForConditionalGeneration";

constexpr std::array kFamilies = {
    DecoderFamily{.kind = {"LlamaForCausalLM", "llama"}, .read = ReadLlama},
    DecoderFamily{.kind = {"MistralForCausalLM", "mistral", kMistral3Class, "mistral3"},
                  .read = ReadMistral},
    DecoderFamily{.kind = {"Ministral3ForCausalLM", "ministral3", kMistral3Class, "mistral3"},
                  .other_rope_members = kMinistralRope,
                  .read = ReadMinistral3},
    DecoderFamily{.kind = {"Qwen2ForCausalLM", "qwen2"}, .read = ReadQwen2},
    DecoderFamily{.kind = {"Qwen3ForCausalLM", "qwen3"},
                  .defaults = R"({"head_dim": 128})",
                  .read = ReadQwen3},
    DecoderFamily{.kind = {nullptr, "qwen3_vl_text", "Qwen3VLForConditionalGeneration", "qwen3_vl"},
                  .default_theta = 500000,
                  .other_rope_members = kQwenVlRope,
                  .defaults = R"({"head_dim": 128})",
                  .read = ReadQwen3Vl},
    DecoderFamily{.kind = {"Phi3ForCausalLM", "phi3"},
                  .has_rotary_fraction = true,
                  .has_original_length = true,
                  .read = ReadPhi3},
    DecoderFamily{.kind = {"GraniteForCausalLM", "granite"}, .read = ReadGranite},
    DecoderFamily{.kind = {"SeedOssForCausalLM", "seed_oss"},
                  .defaults = R"({"head_dim": 128})",
                  .read = ReadSeedOss},
    DecoderFamily{.kind = {"Llama4ForCausalLM", "llama4_text"},
                  .default_theta = 500000,
                  .defaults = R"({"head_dim": 128})",
                  .read = ReadLlama4},
    DecoderFamily{.kind = {"GemmaForCausalLM", "gemma"},
                  .defaults = kGemmaDefaults,
                  .activation_field = "hidden_activation",
                  .read = ReadGemma1},
    DecoderFamily{.kind = {"Gemma2ForCausalLM", "gemma2"},
                  .defaults = kGemmaDefaults,
                  .activation_field = "hidden_activation",
                  .read = ReadGemma2},
    DecoderFamily{
        .kind = {"Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration", "gemma3"},
        .default_theta = 1000000,
        .default_window_theta = 10000,
        .defaults = kGemma3Defaults,
        .activation_field = "hidden_activation",
        .read = ReadGemma3},
    DecoderFamily{.kind = {"Qwen2MoeForCausalLM", "qwen2_moe"}, .read = ReadQwen2Moe},
    DecoderFamily{.kind = {"Qwen3MoeForCausalLM", "qwen3_moe"}, .read = ReadQwen3Moe},
    DecoderFamily{
        .kind = {"MixtralForCausalLM", "mixtral"}, .default_theta = 1000000, .read = ReadMixtral},
    DecoderFamily{.kind = {"OlmoeForCausalLM", "olmoe"}, .read = ReadOlmoe},
    DecoderFamily{.kind = {"GptOssForCausalLM", "gpt_oss"},
                  .default_theta = 150000,
                  .defaults = R"({"head_dim": 64})",
                  .read = ReadGptOss},
    DecoderFamily{.kind = {"Glm4MoeForCausalLM", "glm4_moe"},
                  .rotary_fraction = 0.5,
                  .has_rotary_fraction = true,
                  .read = ReadGlm4Moe},
    DecoderFamily{.kind = {"DeepseekV2ForCausalLM", "deepseek_v2"},
                  .is_latent = true,
                  .read = ReadDeepseekV2},
    DecoderFamily{.kind = {"DeepseekV3ForCausalLM", "deepseek_v3"},
                  .is_latent = true,
                  .read = ReadDeepseekV3},
};

}  // namespace

std::vector<ModelKind> DecoderKinds() {
  std::vector<ModelKind> kinds;
  for (const DecoderFamily& family : kFamilies) kinds.push_back(family.kind);
  return kinds;
}

absl::StatusOr<const DecoderFamily*> FindDecoderFamily(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(const size_t index, FindModelKind(fields, DecoderKinds()));
  return &kFamilies[index];
}

}  // namespace reprise
