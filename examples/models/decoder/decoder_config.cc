#include "reprise/models/decoder/decoder_config.h"

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/fp8_config.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/rope.h"
#include "reprise/models/decoder/decoder_families.h"

namespace reprise {
namespace {

using nlohmann::json;

struct Heads {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

absl::StatusOr<Heads> ReadHeads(const JsonFields& fields, int hidden_size,
                                const DecoderFamily& family) {
  Heads heads;
  REPRISE_ASSIGN_OR_RETURN(heads.num_q_heads, ReadInt(fields, "num_attention_heads", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_kv_heads,
                           fields.OptionalInt("num_key_value_heads", kHeadsRange));
  heads.num_kv_heads = static_cast<int>(num_kv_heads.value_or(heads.num_q_heads));
  const std::string q_heads = absl::StrCat("num_attention_heads (", heads.num_q_heads, ")");
  if (heads.num_q_heads % heads.num_kv_heads != 0) {
    return fields.Unexpected("num_key_value_heads", "a divisor of " + q_heads);
  }
  REPRISE_ASSIGN_OR_RETURN(std::optional<int64_t> head_dim,
                           fields.OptionalInt("head_dim", kHeadDimRange));
  if (!head_dim) head_dim = family.default_head_dim;
  if (!head_dim && hidden_size % heads.num_q_heads != 0) {
    return fields.Unexpected("hidden_size", "a multiple of " + q_heads);
  }
  heads.head_dim = static_cast<int>(head_dim.value_or(hidden_size / heads.num_q_heads));
  if (heads.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": head_dim: expected an even number, got ", heads.head_dim));
  }
  if (int64_t{heads.num_q_heads} * heads.head_dim > kMaxProjection) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": num_attention_heads * head_dim: expected at most ",
                     kMaxProjection, ", got ", heads.num_q_heads, " * ", heads.head_dim));
  }
  return heads;
}

absl::StatusOr<Activation> ReadActivation(const JsonFields& fields, const DecoderFamily& family) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                           ReadActivationName(fields, family.activation_field));
  if (!name) return family.default_activation;
  if (*name == "silu") return Activation::kSilu;
  if (*name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  return fields.Unexpected(family.activation_field, "\"silu\" or \"gelu_pytorch_tanh\"");
}

// The members that all families have in common.
absl::StatusOr<DecoderConfig> ReadDecoder(const JsonFields& fields, const DecoderFamily& family) {
  REPRISE_RETURN_IF_ERROR(AcceptFp8Weights(fields));
  DecoderConfig config;
  config.architecture = family.architecture;
  config.block_columns = Fp8BlockColumns(fields);
  REPRISE_ASSIGN_OR_RETURN(config.hidden_size, ReadInt(fields, "hidden_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.intermediate_size,
                           ReadInt(fields, "intermediate_size", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_layers, ReadInt(fields, "num_hidden_layers", kLayersRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_prediction_layers, ReadPredictionLayers(fields));
  REPRISE_ASSIGN_OR_RETURN(const Heads heads, ReadHeads(fields, config.hidden_size, family));
  config.num_q_heads = heads.num_q_heads;
  config.num_kv_heads = heads.num_kv_heads;
  config.head_dim = heads.head_dim;
  REPRISE_ASSIGN_OR_RETURN(config.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(config.max_seq_len,
                           ReadInt(fields, "max_position_embeddings", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(config.rms_norm_eps,
                           fields.Double("rms_norm_eps", {.min = 1e-12, .max = 1}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> tied,
                           fields.OptionalBool("tie_word_embeddings"));
  config.tie_word_embeddings = tied.value_or(family.ties_embeddings);
  REPRISE_ASSIGN_OR_RETURN(config.activation, ReadActivation(fields, family));
  const RopeDefaults rope = {.max_seq_len = config.max_seq_len, .theta = family.default_theta};
  if (family.default_window_theta.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(LayerRopes ropes,
                             ReadLayerRopes(fields, rope, *family.default_window_theta));
    config.rope = ropes.full;
    config.window_rope = ropes.window;
  } else {
    REPRISE_ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(fields, rope));
  }
  REPRISE_ASSIGN_OR_RETURN(config.dtype, ReadWeightDType(fields));
  REPRISE_ASSIGN_OR_RETURN(config.eos_token_ids, WithEndTokens({}, fields, config.vocab_size));
  return config;
}

}  // namespace

absl::StatusOr<DecoderConfig> ParseDecoderConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, ConfigFields(config, "config.json"));
  REPRISE_ASSIGN_OR_RETURN(const DecoderFamily* const family, FindDecoderFamily(fields));
  REPRISE_ASSIGN_OR_RETURN(DecoderConfig result, ReadDecoder(fields, *family));
  REPRISE_RETURN_IF_ERROR(family->read(fields, result));
  return result;
}

absl::StatusOr<DecoderConfig> LoadDecoderConfig(const std::string& folder) {
  return LoadModelConfig(folder, ParseDecoderConfig);
}

}  // namespace reprise
