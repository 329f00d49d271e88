#include "reprise/models/decoder/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/fp8_config.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/rope.h"
#include "reprise/hf/text_config.h"
#include "reprise/models/decoder/decoder_families.h"
#include "reprise/models/decoder/family_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

// The heads of grouped-query attention.
absl::Status ReadHeads(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.num_q_heads, ReadInt(fields, "num_attention_heads", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_kv_heads,
                           fields.OptionalInt("num_key_value_heads", kHeadsRange));
  config.num_kv_heads = static_cast<int>(num_kv_heads.value_or(config.num_q_heads));
  const std::string q_heads = absl::StrCat("num_attention_heads (", config.num_q_heads, ")");
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return fields.Unexpected("num_key_value_heads", "a divisor of " + q_heads);
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> head_dim,
                           fields.OptionalInt("head_dim", kHeadDimRange));
  if (!head_dim && config.hidden_size % config.num_q_heads != 0) {
    return fields.Unexpected("hidden_size", "a multiple of " + q_heads);
  }
  config.head_dim = static_cast<int>(head_dim.value_or(config.hidden_size / config.num_q_heads));
  if (config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": head_dim: expected an even number, got ", config.head_dim));
  }
  if (int64_t{config.num_q_heads} * config.head_dim > kMaxProjection) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": num_attention_heads * head_dim: expected at most ",
                     kMaxProjection, ", got ", config.num_q_heads, " * ", config.head_dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<Activation> ReadActivation(const JsonFields& fields, const DecoderFamily& family) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                           ReadActivationName(fields, family.activation_field));
  if (!name || *name == "silu") return Activation::kSilu;
  if (*name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  return fields.Unexpected(family.activation_field, "\"silu\" or \"gelu_pytorch_tanh\"");
}

// "q_lora_rank": null means that there is none; the field is required.
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

// The heads of multi-head latent attention.
absl::Status ReadLatentHeads(const JsonFields& fields, DecoderConfig& config) {
  constexpr IntRange kDimRange = {.min = 1, .max = 1 << 12};
  REPRISE_ASSIGN_OR_RETURN(config.num_q_heads, ReadInt(fields, "num_attention_heads", kHeadsRange));
  config.num_kv_heads = config.num_q_heads;
  LatentAttention latent;
  REPRISE_ASSIGN_OR_RETURN(latent.q_rank, ReadQueryRank(fields));
  REPRISE_ASSIGN_OR_RETURN(latent.kv_rank, ReadInt(fields, "kv_lora_rank", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(latent.nope_dim, ReadInt(fields, "qk_nope_head_dim", kDimRange));
  REPRISE_ASSIGN_OR_RETURN(latent.rope_dim, ReadInt(fields, "qk_rope_head_dim", kDimRange));
  if (latent.rope_dim % 2 != 0) return fields.Unexpected("qk_rope_head_dim", "an even number");
  REPRISE_ASSIGN_OR_RETURN(latent.v_dim, ReadInt(fields, "v_head_dim", kDimRange));
  REPRISE_RETURN_IF_ERROR(
      CheckAgrees(fields, "num_key_value_heads", config.num_q_heads, "num_attention_heads"));
  REPRISE_RETURN_IF_ERROR(CheckAgrees(fields, "head_dim", latent.rope_dim, "qk_rope_head_dim"));
  REPRISE_RETURN_IF_ERROR(
      CheckAgrees(fields, "qk_head_dim", latent.qk_dim(), "qk_nope_head_dim + qk_rope_head_dim"));
  const int widest =
      std::max({latent.qk_dim(), latent.nope_dim + latent.v_dim, latent.latent_dim()});
  if (int64_t{config.num_q_heads} * widest > kMaxProjection) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.where(), ": num_attention_heads times the size of a head: expected at most ",
        kMaxProjection, ", got ", config.num_q_heads, " * ", widest));
  }
  config.latent = latent;
  config.head_dim = latent.qk_dim();
  config.rope_pairs = RopePairs::kNeighbours;
  return ReadAttentionBias(fields, false, config);
}

// The scale of scores, of families with MLA: YaRN multiplies it by the square of mscale_all_dim's
// factor.
absl::StatusOr<double> ReadLatentScale(const JsonFields& fields, const DecoderConfig& config) {
  const double plain = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const YarnRope* const yarn = std::get_if<YarnRope>(&config.rope.scaling);
  if (yarn == nullptr || yarn->factor <= 1) return plain;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> form, RopeForm(fields));
  if (!form) return plain;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> mscale,
                           form->OptionalDouble("mscale_all_dim", {.min = 0, .max = 1e3}));
  if (mscale.value_or(0) == 0) return plain;
  const double factor = YarnMScale(yarn->factor, *mscale);
  return factor * factor * plain;
}

absl::Status ReadRope(const JsonFields& fields, const DecoderFamily& family,
                      DecoderConfig& config) {
  const RopeDefaults defaults = {.max_seq_len = config.max_seq_len,
                                 .theta = family.default_theta,
                                 .rotary_fraction = family.rotary_fraction,
                                 .other_members = family.other_rope_members,
                                 .has_original_length = family.has_original_length};
  if (family.default_window_theta.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(LayerRopes ropes,
                             ReadLayerRopes(fields, defaults, *family.default_window_theta));
    config.rope = ropes.full;
    config.window_rope = ropes.window;
  } else {
    REPRISE_ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(fields, defaults));
  }
  const double fraction = config.rope.rotary_fraction;
  if (fraction == 1) return absl::OkStatus();
  if (!family.has_rotary_fraction) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": partial_rotary_factor: expected 1, got ", fraction));
  }
  if (config.rotary_dim() < 2 || config.rotary_dim() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.where(), ": partial_rotary_factor: expected 1, or an even part of head_dim (",
        config.head_dim, "), got ", fraction));
  }
  return absl::OkStatus();
}

// The members that all families have in common.
absl::StatusOr<DecoderConfig> ReadDecoder(const JsonFields& fields, const DecoderFamily& family) {
  REPRISE_RETURN_IF_ERROR(family.is_latent ? RefuseQuantization(fields) : AcceptFp8Weights(fields));
  DecoderConfig config;
  config.block_columns = Fp8BlockColumns(fields);
  REPRISE_ASSIGN_OR_RETURN(config.hidden_size, ReadInt(fields, "hidden_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.intermediate_size,
                           ReadInt(fields, "intermediate_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_layers, ReadInt(fields, "num_hidden_layers", kLayersRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_prediction_layers, ReadPredictionLayers(fields));
  if (family.is_latent) {
    REPRISE_RETURN_IF_ERROR(ReadLatentHeads(fields, config));
  } else {
    REPRISE_RETURN_IF_ERROR(ReadHeads(fields, config));
  }
  REPRISE_ASSIGN_OR_RETURN(config.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(config.max_seq_len,
                           ReadInt(fields, "max_position_embeddings", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(config.rms_norm_eps,
                           fields.Double("rms_norm_eps", {.min = 1e-12, .max = 1}));
  REPRISE_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                           ReadFlag(fields, "tie_word_embeddings", false));
  REPRISE_ASSIGN_OR_RETURN(config.activation, ReadActivation(fields, family));
  REPRISE_RETURN_IF_ERROR(ReadRope(fields, family, config));
  if (family.is_latent) {
    REPRISE_ASSIGN_OR_RETURN(config.attention_scale, ReadLatentScale(fields, config));
  }
  REPRISE_ASSIGN_OR_RETURN(config.dtype, ReadWeightDType(fields));
  REPRISE_ASSIGN_OR_RETURN(config.eos_token_ids, WithEndTokens({}, fields, config.vocab_size));
  return config;
}

// `config` with the family's defaults for members that are absent or null.
json WithDefaults(json config, const DecoderFamily& family) {
  const json defaults = json::parse(family.defaults);
  for (const auto& [name, value] : defaults.items()) {
    json& member = config[name];
    if (member.is_null()) member = value;
  }
  return config;
}

}  // namespace

absl::StatusOr<DecoderConfig> ParseDecoderConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields given, ConfigFields(config, "config.json"));
  REPRISE_ASSIGN_OR_RETURN(const DecoderFamily* const family, FindDecoderFamily(given));
  REPRISE_ASSIGN_OR_RETURN(json text, TextConfigOf(config));
  const json complete = WithDefaults(std::move(text), *family);
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields,
                           ConfigFields(complete, TextConfigWhere(config)));
  REPRISE_ASSIGN_OR_RETURN(DecoderConfig result, ReadDecoder(fields, *family));
  if (IsWrapped(config)) result.tensor_names = TensorNames::kWrapped;
  REPRISE_RETURN_IF_ERROR(family->read(fields, result));
  if (result.experts.has_value()) result.experts->block_columns = result.block_columns;
  return result;
}

absl::StatusOr<DecoderConfig> LoadDecoderConfig(const std::string& folder) {
  return LoadModelConfig(folder, ParseDecoderConfig);
}

}  // namespace reprise
