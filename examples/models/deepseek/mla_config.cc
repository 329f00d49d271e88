#include "reprise/models/deepseek/mla_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/rope.h"

namespace reprise {
namespace {

using nlohmann::json;

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

// YaRN's factor of the scores: transformers multiplies them by the square of mscale_all_dim's
// factor.
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

// q_lora_rank: null means that there is none; the field is required.
absl::StatusOr<std::optional<int>> ReadQueryRank(const JsonFields& fields) {
  if (!fields.object().contains("q_lora_rank")) {
    return fields.Unexpected("q_lora_rank", "an integer or null");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> rank,
                           fields.OptionalInt("q_lora_rank", kWidthRange));
  if (!rank) return std::optional<int>();
  return std::optional(static_cast<int>(*rank));
}

// `value`, if the file has it, repeats what other fields define.
absl::Status CheckAgrees(const JsonFields& fields, const char* name, int value, const char* of) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> got, fields.OptionalInt(name, {}));
  if (!got || *got == value) return absl::OkStatus();
  return fields.Unexpected(name, absl::StrCat(of, " (", value, ")"));
}

absl::Status ReadHeads(const JsonFields& fields, MlaConfig& config) {
  constexpr IntRange kDimRange = {.min = 1, .max = 1 << 12};
  REPRISE_ASSIGN_OR_RETURN(config.num_heads, ReadInt(fields, "num_attention_heads", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(config.q_lora_rank, ReadQueryRank(fields));
  REPRISE_ASSIGN_OR_RETURN(config.kv_lora_rank, ReadInt(fields, "kv_lora_rank", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(config.qk_nope_head_dim, ReadInt(fields, "qk_nope_head_dim", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(config.qk_rope_head_dim, ReadInt(fields, "qk_rope_head_dim", kDimRange));
  if (config.qk_rope_head_dim % 2 != 0) {
    return fields.Unexpected("qk_rope_head_dim", "an even number");
  }
  REPRISE_ASSIGN_OR_RETURN(config.v_head_dim, ReadInt(fields, "v_head_dim", kDimRange));
  REPRISE_RETURN_IF_ERROR(
      CheckAgrees(fields, "num_key_value_heads", config.num_heads, "num_attention_heads"));
  REPRISE_RETURN_IF_ERROR(
      CheckAgrees(fields, "head_dim", config.qk_rope_head_dim, "qk_rope_head_dim"));
  REPRISE_RETURN_IF_ERROR(CheckAgrees(fields, "qk_head_dim", config.qk_head_dim(),
                                      "qk_nope_head_dim + qk_rope_head_dim"));
  const int widest = std::max(
      {config.qk_head_dim(), config.qk_nope_head_dim + config.v_head_dim, config.latent_dim()});
  if (int64_t{config.num_heads} * widest <= kMaxProjection) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      fields.where(), ": num_attention_heads times the size of a head: expected at most ",
      kMaxProjection, ", got ", config.num_heads, " * ", widest));
}

}  // namespace

absl::StatusOr<MlaConfig> ParseMlaConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, ConfigFields(config, "config.json"));
  REPRISE_RETURN_IF_ERROR(FindModelKind(fields, {kMlaKind}).status());
  REPRISE_RETURN_IF_ERROR(RefuseQuantization(fields));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> activation,
                           ReadActivationName(fields, "hidden_act"));
  if (activation.value_or("silu") != "silu") return fields.Unexpected("hidden_act", "\"silu\"");
  MlaConfig result;
  REPRISE_ASSIGN_OR_RETURN(result.hidden_size, ReadInt(fields, "hidden_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(result.intermediate_size,
                           ReadInt(fields, "intermediate_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(result.num_layers, ReadInt(fields, "num_hidden_layers", kLayersRange));
  REPRISE_ASSIGN_OR_RETURN(result.num_prediction_layers, ReadPredictionLayers(fields));
  REPRISE_RETURN_IF_ERROR(RefuseExperts(fields, result.num_layers));
  REPRISE_RETURN_IF_ERROR(ReadHeads(fields, result));
  REPRISE_ASSIGN_OR_RETURN(result.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(result.max_seq_len,
                           ReadInt(fields, "max_position_embeddings", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(result.rms_norm_eps,
                           fields.Double("rms_norm_eps", {.min = 1e-12, .max = 1}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> tied,
                           fields.OptionalBool("tie_word_embeddings"));
  result.tie_word_embeddings = tied.value_or(false);
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> attention_bias,
                           fields.OptionalBool("attention_bias"));
  result.attention_bias = attention_bias.value_or(false);
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> mlp_bias, fields.OptionalBool("mlp_bias"));
  result.mlp_bias = mlp_bias.value_or(false);
  REPRISE_ASSIGN_OR_RETURN(result.rope,
                           ReadRopeConfig(fields, {.max_seq_len = result.max_seq_len}));
  REPRISE_ASSIGN_OR_RETURN(const double factor, ReadScoreFactor(fields, result.rope));
  result.attention_scale = factor / std::sqrt(static_cast<double>(result.qk_head_dim()));
  REPRISE_ASSIGN_OR_RETURN(result.dtype, ReadWeightDType(fields));
  REPRISE_ASSIGN_OR_RETURN(result.eos_token_ids, WithEndTokens({}, fields, result.vocab_size));
  return result;
}

absl::StatusOr<MlaConfig> LoadMlaConfig(const std::string& folder) {
  return LoadModelConfig(folder, ParseMlaConfig);
}

}  // namespace reprise
