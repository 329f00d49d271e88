#include "reprise/models/bart/bart_config.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

// transformers' default, for files that name none.
constexpr int64_t kDefaultStartToken = 2;

// `value` is what the field means where it is left out, and all that is implemented.
absl::Status CheckIs(const JsonFields& fields, const char* name, bool value) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> got, fields.OptionalBool(name));
  if (got.value_or(value) == value) return absl::OkStatus();
  return fields.Unexpected(
      name, absl::StrCat(value ? "true" : "false", ", the only one that is supported"));
}

absl::Status CheckBlocks(const JsonFields& fields) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> activation,
                           ReadActivationName(fields, "activation_function"));
  if (activation.value_or("gelu") != "gelu") {
    return fields.Unexpected("activation_function", "a supported activation (\"gelu\")");
  }
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "is_encoder_decoder", true));
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "tie_word_embeddings", true));
  // Of its relatives, in old files.
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "normalize_embedding", true));
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "normalize_before", false));
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "add_final_layer_norm", false));
  return CheckIs(fields, "static_position_embeddings", false);
}

absl::StatusOr<BartStackConfig> ReadStack(const JsonFields& fields, const std::string& name,
                                          int d_model) {
  BartStackConfig stack;
  REPRISE_ASSIGN_OR_RETURN(stack.num_layers, ReadInt(fields, name + "_layers", kLayersRange));
  const std::string heads = name + "_attention_heads";
  REPRISE_ASSIGN_OR_RETURN(stack.num_heads, ReadInt(fields, heads, kHeadsRange));
  if (d_model % stack.num_heads != 0) {
    return fields.Unexpected(heads, absl::StrCat("a divisor of d_model (", d_model, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(stack.ffn_dim, ReadInt(fields, name + "_ffn_dim", kWidthRange));
  return stack;
}

absl::Status ReadStartToken(const JsonFields& fields, int64_t otherwise, BartConfig& config) {
  const IntRange range = {.min = 0, .max = config.vocab_size - 1};
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> token,
                           fields.OptionalInt("decoder_start_token_id", range));
  if (!token.has_value() && otherwise > range.max) {
    return fields.Unexpected("decoder_start_token_id",
                             absl::StrCat("an integer in [0, ", range.max, "]"));
  }
  config.decoder_start_token_id = static_cast<int32_t>(token.value_or(otherwise));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BartConfig> ParseBartConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, ConfigFields(config, "config.json"));
  REPRISE_RETURN_IF_ERROR(FindModelKind(fields, kBartKinds).status());
  REPRISE_RETURN_IF_ERROR(RefuseQuantization(fields));
  REPRISE_RETURN_IF_ERROR(CheckBlocks(fields));
  BartConfig result;
  REPRISE_ASSIGN_OR_RETURN(result.d_model, ReadInt(fields, "d_model", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(result.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(result.max_seq_len,
                           ReadInt(fields, "max_position_embeddings", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(result.encoder, ReadStack(fields, "encoder", result.d_model));
  REPRISE_ASSIGN_OR_RETURN(result.decoder, ReadStack(fields, "decoder", result.d_model));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> scaled,
                           fields.OptionalBool("scale_embedding"));
  result.scale_embedding = scaled.value_or(false);
  REPRISE_RETURN_IF_ERROR(ReadStartToken(fields, kDefaultStartToken, result));
  REPRISE_ASSIGN_OR_RETURN(result.dtype, ReadWeightDType(fields));
  REPRISE_ASSIGN_OR_RETURN(result.eos_token_ids, WithEndTokens({}, fields, result.vocab_size));
  return result;
}

absl::StatusOr<BartConfig> WithGenerationConfig(BartConfig config, const json& generation_config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields,
                           ConfigFields(generation_config, "generation_config.json"));
  REPRISE_RETURN_IF_ERROR(ReadStartToken(fields, config.decoder_start_token_id, config));
  return WithGenerationConfig<BartConfig>(std::move(config), generation_config);
}

absl::StatusOr<BartConfig> LoadBartConfig(const std::string& folder) {
  return LoadModelConfig(folder, ParseBartConfig);
}

}  // namespace reprise
