#include "examples/mla/mla_config.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "examples/llama/json_fields.h"
#include "examples/llama/rope_config.h"
#include "examples/llama/strict_json.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr IntRange kWidthRange = {.min = 1, .max = 1 << 20};
constexpr IntRange kLayersRange = {.min = 1, .max = 1 << 12};
constexpr IntRange kHeadsRange = {.min = 1, .max = 1 << 12};
constexpr IntRange kDimRange = {.min = 1, .max = 1 << 12};
constexpr IntRange kVocabRange = {.min = 1, .max = 1 << 24};
constexpr IntRange kSeqLenRange = {.min = 1, .max = 1 << 28};

// Like JsonFields::Int(), for ranges within int's.
absl::StatusOr<int> ReadInt(const JsonFields& fields, std::string_view name, IntRange range) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t number, fields.Int(name, range));
  return static_cast<int>(number);
}

absl::StatusOr<bool> ReadFlag(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> flag, fields.OptionalBool(name));
  return flag.value_or(false);
}

absl::Status CheckKind(const JsonFields& fields) {
  const json* const classes = fields.Find("architectures");
  if (classes == nullptr || *classes != json::array({"DeepseekV2ForCausalLM"})) {
    return fields.Unexpected("architectures", "a supported architecture (DeepseekV2ForCausalLM)");
  }
  if (fields.Find("quantization_config") != nullptr) {
    return fields.Unexpected("quantization_config", "nothing, as quantization is not supported");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> activation,
                           fields.OptionalString("hidden_act"));
  if (activation.value_or("silu") != "silu") return fields.Unexpected("hidden_act", "\"silu\"");
  return absl::OkStatus();
}

// Layers from first_k_dense_replace on are mixtures, unless there are no experts.
absl::Status RefuseExperts(const JsonFields& fields, int num_layers) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_experts,
                           fields.OptionalInt("n_routed_experts", {.min = 0, .max = 1 << 20}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_dense,
                           fields.OptionalInt("first_k_dense_replace", {.min = 0, .max = 1 << 20}));
  if (num_experts.value_or(0) == 0 || num_dense.value_or(0) >= num_layers) return absl::OkStatus();
  return fields.Unexpected("first_k_dense_replace",
                           absl::StrCat("at least num_hidden_layers (", num_layers,
                                        "), as mixtures of experts are not supported"));
}

// What YaRN makes of scores: transformers multiplies them by the square of mscale_all_dim's factor.
absl::StatusOr<double> ReadScoreFactor(const JsonFields& fields, const RopeConfig& rope) {
  const YarnRope* const yarn = std::get_if<YarnRope>(&rope.scaling);
  if (yarn == nullptr || yarn->factor <= 1) return 1.0;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> form, fields.OptionalObject(name));
    if (!form) continue;
    REPRISE_ASSIGN_OR_RETURN(const std::optional<double> mscale,
                             form->OptionalDouble("mscale_all_dim", {.min = 0, .max = 1e3}));
    if (mscale.value_or(0) == 0) return 1.0;
    const double factor = 0.1 * *mscale * std::log(yarn->factor) + 1;
    return factor * factor;
  }
  return 1.0;
}

absl::Status ReadHeads(const JsonFields& fields, MlaConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.num_heads, ReadInt(fields, "num_attention_heads", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_kv_heads,
                           fields.OptionalInt("num_key_value_heads", kHeadsRange));
  if (num_kv_heads.value_or(config.num_heads) != config.num_heads) {
    return fields.Unexpected("num_key_value_heads",
                             absl::StrCat("num_attention_heads (", config.num_heads, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> q_rank,
                           fields.OptionalInt("q_lora_rank", kWidthRange));
  if (q_rank) config.q_lora_rank = static_cast<int>(*q_rank);
  REPRISE_ASSIGN_OR_RETURN(config.kv_lora_rank, ReadInt(fields, "kv_lora_rank", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(config.qk_nope_head_dim, ReadInt(fields, "qk_nope_head_dim", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(config.qk_rope_head_dim, ReadInt(fields, "qk_rope_head_dim", kDimRange));
  if (config.qk_rope_head_dim % 2 != 0) {
    return fields.Unexpected("qk_rope_head_dim", "an even number");
  }
  REPRISE_ASSIGN_OR_RETURN(config.v_head_dim, ReadInt(fields, "v_head_dim", kDimRange));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MlaConfig> ParseMlaConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(config, "config.json"));
  REPRISE_RETURN_IF_ERROR(CheckKind(fields));
  MlaConfig result;
  REPRISE_ASSIGN_OR_RETURN(result.hidden_size, ReadInt(fields, "hidden_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(result.intermediate_size,
                           ReadInt(fields, "intermediate_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(result.num_layers, ReadInt(fields, "num_hidden_layers", kLayersRange));
  REPRISE_RETURN_IF_ERROR(RefuseExperts(fields, result.num_layers));
  REPRISE_RETURN_IF_ERROR(ReadHeads(fields, result));
  REPRISE_ASSIGN_OR_RETURN(result.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(result.max_seq_len,
                           ReadInt(fields, "max_position_embeddings", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(result.rms_norm_eps,
                           fields.Double("rms_norm_eps", {.min = 1e-12, .max = 1}));
  REPRISE_ASSIGN_OR_RETURN(result.tie_word_embeddings, ReadFlag(fields, "tie_word_embeddings"));
  REPRISE_ASSIGN_OR_RETURN(result.attention_bias, ReadFlag(fields, "attention_bias"));
  REPRISE_ASSIGN_OR_RETURN(result.mlp_bias, ReadFlag(fields, "mlp_bias"));
  REPRISE_ASSIGN_OR_RETURN(result.rope,
                           ReadRopeConfig(fields, {.max_seq_len = result.max_seq_len}));
  REPRISE_ASSIGN_OR_RETURN(const double factor, ReadScoreFactor(fields, result.rope));
  result.attention_scale = factor / std::sqrt(static_cast<double>(result.qk_head_dim()));
  for (const char* name : {"dtype", "torch_dtype"}) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> text, fields.OptionalString(name));
    if (!text) continue;
    result.dtype = ParseDType(*text);
    if (!result.dtype || IsFp8(*result.dtype)) {
      return fields.Unexpected(name, "\"float32\", \"bfloat16\", \"float16\" or \"float64\"");
    }
    break;
  }
  return result;
}

absl::StatusOr<MlaConfig> LoadMlaConfig(const std::string& folder) {
  REPRISE_ASSIGN_OR_RETURN(const json config, ReadJsonFile(absl::StrCat(folder, "/config.json")));
  absl::StatusOr<MlaConfig> result = ParseMlaConfig(config);
  if (result.ok()) return result;
  return absl::Status(result.status().code(), absl::StrCat(folder, "/", result.status().message()));
}

}  // namespace reprise
