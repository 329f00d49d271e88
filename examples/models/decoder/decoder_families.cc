#include "reprise/models/decoder/decoder_families.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/models/moe/experts_config.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr IntRange kSpanRange = {.min = 1, .max = 1 << 28};  // of a window or a chunk, in tokens
constexpr DoubleRange kSoftcapRange = {.min = 1e-3, .max = 1e6};

absl::StatusOr<bool> ReadFlag(const JsonFields& fields, std::string_view name, bool absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> flag, fields.OptionalBool(name));
  return flag.value_or(absent);
}

// The number; `absent` if the member is absent. nullopt if it is null, which means that the model
// does without.
absl::StatusOr<std::optional<int>> ReadSpan(const JsonFields& fields, const char* name,
                                            int absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> span, fields.OptionalInt(name, kSpanRange));
  if (span) return std::optional(static_cast<int>(*span));
  if (fields.object().contains(name)) return std::optional<int>();
  return std::optional(absent);
}

absl::StatusOr<std::optional<double>> ReadSoftcap(const JsonFields& fields, const char* name,
                                                  double absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> cap,
                           fields.OptionalDouble(name, kSoftcapRange));
  if (cap || fields.object().contains(name)) return cap;
  return std::optional(absent);
}

// Reads "layer_types", each `local` or "full_attention": whether each layer is local. nullopt if it
// is absent.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLocalLayers(const JsonFields& fields,
                                                                 const DecoderConfig& config,
                                                                 const char* local) {
  if (fields.Find("layer_types") == nullptr) return std::optional<std::vector<bool>>();
  REPRISE_ASSIGN_OR_RETURN(const json* const types, fields.Array("layer_types"));
  const std::string expected = absl::StrCat("num_hidden_layers (", config.num_layers,
                                            ") times \"full_attention\" or \"", local, "\"");
  std::vector<bool> layers;
  for (const json& type : *types) {
    if (type != "full_attention" && type != local) {
      return fields.Unexpected("layer_types", expected);
    }
    layers.push_back(type == local);
  }
  if (static_cast<int>(layers.size()) != config.num_layers) {
    return fields.Unexpected("layer_types", expected);
  }
  return std::optional(std::move(layers));
}

absl::Status ReadLlama(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", false));
  config.o_bias = config.qkv_bias;
  REPRISE_ASSIGN_OR_RETURN(config.mlp_bias, ReadFlag(fields, "mlp_bias", false));
  return absl::OkStatus();
}

absl::Status ReadMistral(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int> window,
                           ReadSpan(fields, "sliding_window", 4096));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> local,
                           ReadLocalLayers(fields, config, "sliding_attention"));
  for (int layer = 0; local && layer < config.num_layers; ++layer) {
    if ((*local)[layer] != window.has_value()) {
      return fields.Unexpected("layer_types", "what sliding_window says of all layers");
    }
  }
  if (window) config.attention.assign(config.num_layers, {.window = window});
  return absl::OkStatus();
}

// Qwen's windows: sliding_window counts only with use_sliding_window.
absl::Status ReadQwenWindows(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const bool uses_window, ReadFlag(fields, "use_sliding_window", false));
  REPRISE_ASSIGN_OR_RETURN(std::optional<int> window, ReadSpan(fields, "sliding_window", 4096));
  if (!uses_window) window.reset();
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_full,
                           fields.OptionalInt("max_window_layers", {.min = 0, .max = 1 << 20}));
  REPRISE_ASSIGN_OR_RETURN(std::optional<std::vector<bool>> local,
                           ReadLocalLayers(fields, config, "sliding_attention"));
  if (!local) {
    local.emplace();
    for (int layer = 0; layer < config.num_layers; ++layer) {
      local->push_back(window.has_value() && layer >= num_full.value_or(28));
    }
  }
  for (const bool is_local : *local) {
    if (is_local && !window) {
      return fields.Unexpected("sliding_window",
                               "a number beside use_sliding_window, as layer_types has windows");
    }
    config.attention.push_back(is_local ? LayerAttention{.window = window} : LayerAttention());
  }
  return absl::OkStatus();
}

absl::Status ReadQwen2(const JsonFields& fields, DecoderConfig& config) {
  config.qkv_bias = true;
  return ReadQwenWindows(fields, config);
}

absl::Status ReadQwen3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.qk_norm = QkNorm::kWeighted;
  return ReadQwenWindows(fields, config);
}

// Refuses the member unless it is absent, null or `only`.
absl::Status CheckIs(const JsonFields& fields, const char* name, bool only) {
  REPRISE_ASSIGN_OR_RETURN(const bool flag, ReadFlag(fields, name, only));
  if (flag == only) return absl::OkStatus();
  return fields.Unexpected(name, only ? "true or null" : "false or null");
}

constexpr IntRange kExpertsRange = {.min = 1, .max = 1 << 12};

// The experts' number, size and how many a token takes.
absl::StatusOr<ExpertsConfig> ReadExperts(const JsonFields& fields, const char* num_experts,
                                          const char* inner_size, int64_t default_chosen) {
  ExpertsConfig experts;
  REPRISE_ASSIGN_OR_RETURN(experts.num_experts, ReadInt(fields, num_experts, kExpertsRange));
  REPRISE_ASSIGN_OR_RETURN(experts.inner_size, ReadInt(fields, inner_size, kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> chosen,
                           fields.OptionalInt("num_experts_per_tok", kExpertsRange));
  experts.num_chosen = static_cast<int>(chosen.value_or(default_chosen));
  if (experts.num_chosen > experts.num_experts) {
    return fields.Unexpected("num_experts_per_tok",
                             absl::StrCat("at most ", num_experts, " (", experts.num_experts, ")"));
  }
  if (int64_t{experts.num_experts} * 2 * experts.inner_size > kMaxProjection) {
    return fields.Unexpected(
        inner_size, absl::StrCat("at most ", kMaxProjection, " / 2 for all experts together"));
  }
  return experts;
}

absl::Status ReadQwen3Moe(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadQwen3(fields, config));
  // Every `step` layers one is a mixture; mlp_only_layers are not.
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                           fields.OptionalInt("decoder_sparse_step", {.min = 1, .max = 1 << 20}));
  if (step.value_or(1) != 1) {
    return fields.Unexpected("decoder_sparse_step",
                             "1, as layers without experts beside layers "
                             "with experts are not supported");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> dense,
                           fields.OptionalInts("mlp_only_layers", {.min = 0, .max = 1 << 20}));
  if (dense.has_value() && !dense->empty()) {
    return fields.Unexpected("mlp_only_layers",
                             "[], as layers without experts beside layers with "
                             "experts are not supported");
  }
  // transformers 5 writes num_local_experts for what older files call num_experts.
  const bool is_new = fields.Find("num_local_experts") != nullptr;
  if (is_new && fields.Find("num_experts") != nullptr) {
    return fields.Unexpected("num_experts", "nothing beside num_local_experts");
  }
  REPRISE_ASSIGN_OR_RETURN(config.experts,
                           ReadExperts(fields, is_new ? "num_local_experts" : "num_experts",
                                       "moe_intermediate_size", 8));
  config.experts->activation = config.activation;
  REPRISE_ASSIGN_OR_RETURN(config.experts->normalises, ReadFlag(fields, "norm_topk_prob", false));
  return absl::OkStatus();
}

// Every other layer, the first among them, has a window of `sliding_window` tokens, unless
// `layer_types` says otherwise.
absl::Status ReadAlternatingWindows(const JsonFields& fields, int default_window,
                                    DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int> window,
                           ReadSpan(fields, "sliding_window", default_window));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> local,
                           ReadLocalLayers(fields, config, "sliding_attention"));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool is_local = local ? (*local)[layer] : layer % 2 == 0;
    config.attention.push_back(is_local ? LayerAttention{.window = window} : LayerAttention());
  }
  return absl::OkStatus();
}

absl::Status ReadGptOss(const JsonFields& fields, DecoderConfig& config) {
  if (config.activation != Activation::kSilu) return fields.Unexpected("hidden_act", "\"silu\"");
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", true));
  config.o_bias = config.qkv_bias;
  config.sinks = true;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> limit,
                           fields.OptionalDouble("swiglu_limit", {.min = 0, .max = 1e6}));
  if (limit.value_or(7) != 7) return fields.Unexpected("swiglu_limit", "7");
  REPRISE_ASSIGN_OR_RETURN(config.experts,
                           ReadExperts(fields, "num_local_experts", "intermediate_size", 4));
  config.experts->activation = Activation::kClampedSwiglu;
  config.experts->router_bias = true;
  config.experts->expert_bias = true;
  config.experts->files = ExpertFiles::kStacked;

  return ReadAlternatingWindows(fields, 128, config);
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
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", false));
  config.o_bias = config.qkv_bias;
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
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", false));
  config.o_bias = config.qkv_bias;
  config.norm_weight = NormWeight::kOnePlus;
  config.norm_placement = NormPlacement::kBeforeAndAfter;
  config.scale_embedding = true;
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<double> pre_scalar,
      fields.OptionalDouble("query_pre_attn_scalar", {.min = 1e-3, .max = 1e6}));
  config.attention_scale = 1 / std::sqrt(pre_scalar.value_or(256));
  return absl::OkStatus();
}

absl::Status ReadGemma2(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadGemma(fields, config));
  REPRISE_ASSIGN_OR_RETURN(config.attention_softcap,
                           ReadSoftcap(fields, "attn_logit_softcapping", 50));
  REPRISE_ASSIGN_OR_RETURN(config.logit_softcap,
                           ReadSoftcap(fields, "final_logit_softcapping", 30));

  return ReadAlternatingWindows(fields, 4096, config);
}

absl::Status ReadGemma3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadGemma(fields, config));
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

constexpr std::array kFamilies = {
    DecoderFamily{.architecture = Architecture::kLlama,
                  .kind = {"LlamaForCausalLM", "llama"},
                  .read = ReadLlama},
    DecoderFamily{.architecture = Architecture::kMistral,
                  .kind = {"MistralForCausalLM", "mistral"},
                  .read = ReadMistral},
    DecoderFamily{.architecture = Architecture::kQwen2,
                  .kind = {"Qwen2ForCausalLM", "qwen2"},
                  .read = ReadQwen2},
    DecoderFamily{.architecture = Architecture::kQwen3,
                  .kind = {"Qwen3ForCausalLM", "qwen3"},
                  .default_head_dim = 128,
                  .read = ReadQwen3},
    DecoderFamily{.architecture = Architecture::kLlama4,
                  .kind = {"Llama4ForCausalLM", "llama4_text"},
                  .default_theta = 500000,
                  .default_head_dim = 128,
                  .read = ReadLlama4},
    DecoderFamily{.architecture = Architecture::kGemma2,
                  .kind = {"Gemma2ForCausalLM", "gemma2"},
                  .default_head_dim = 256,
                  .ties_embeddings = true,
                  .activation_field = "hidden_activation",
                  .default_activation = Activation::kGeluTanh,
                  .read = ReadGemma2},
    DecoderFamily{.architecture = Architecture::kGemma3,
                  .kind = {"Gemma3ForCausalLM", "gemma3_text"},
                  .default_theta = 1000000,
                  .default_window_theta = 10000,
                  .default_head_dim = 256,
                  .ties_embeddings = true,
                  .activation_field = "hidden_activation",
                  .default_activation = Activation::kGeluTanh,
                  .read = ReadGemma3},
    DecoderFamily{.architecture = Architecture::kQwen3Moe,
                  .kind = {"Qwen3MoeForCausalLM", "qwen3_moe"},
                  .read = ReadQwen3Moe},
    DecoderFamily{.architecture = Architecture::kGptOss,
                  .kind = {"GptOssForCausalLM", "gpt_oss"},
                  .default_theta = 150000,
                  .default_head_dim = 64,
                  .read = ReadGptOss},
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
