#include "reprise/models/gpt/gpt_config.h"

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"

namespace reprise {
namespace {

using nlohmann::json;

// `value` is what the field means where it is left out, and all that is implemented.
absl::Status CheckIs(const JsonFields& fields, const char* name, bool value) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> got, fields.OptionalBool(name));
  if (got.value_or(value) == value) return absl::OkStatus();
  return fields.Unexpected(
      name, absl::StrCat(value ? "true" : "false", ", the only one that is supported"));
}

// The member, by the older name if only that is there.
absl::StatusOr<int> ReadRenamed(const JsonFields& fields, const char* name, const char* old_name,
                                IntRange range) {
  const bool is_old = fields.Find(name) == nullptr && fields.Find(old_name) != nullptr;
  return ReadInt(fields, is_old ? old_name : name, range);
}

absl::Status ReadGpt2(const JsonFields& fields, GptConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.hidden_size, ReadInt(fields, "n_embd", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_layers, ReadInt(fields, "n_layer", kLayersRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_heads, ReadInt(fields, "n_head", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(config.max_seq_len, ReadInt(fields, "n_positions", kSeqLenRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> inner,
                           fields.OptionalInt("n_inner", kWidthRange));
  config.inner_size = static_cast<int>(inner.value_or(int64_t{4} * config.hidden_size));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> activation,
                           ReadActivationName(fields, "activation_function"));
  const std::string name = activation.value_or("gelu_pytorch_tanh");
  if (name == "gelu") {
    config.gelu = GeluForm::kErf;
  } else if (name != "gelu_pytorch_tanh") {
    return fields.Unexpected(
        "activation_function",
        "a supported activation (\"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu\")");
  }
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "scale_attn_weights", true));
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "scale_attn_by_inverse_layer_idx", false));
  return CheckIs(fields, "add_cross_attention", false);
}

absl::Status ReadBloom(const JsonFields& fields, GptConfig& config) {
  constexpr int64_t kTrainedLength = 2048;
  REPRISE_ASSIGN_OR_RETURN(config.hidden_size,
                           ReadRenamed(fields, "hidden_size", "n_embed", kWidthRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_layers,
                           ReadRenamed(fields, "n_layer", "num_hidden_layers", kLayersRange));
  REPRISE_ASSIGN_OR_RETURN(config.num_heads,
                           ReadRenamed(fields, "n_head", "num_attention_heads", kHeadsRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> length,
                           fields.OptionalInt("seq_length", kSeqLenRange));
  config.max_seq_len = static_cast<int>(length.value_or(kTrainedLength));
  config.inner_size = 4 * config.hidden_size;
  return CheckIs(fields, "apply_residual_connection_post_layernorm", false);
}

}  // namespace

absl::StatusOr<GptConfig> ParseGptConfig(const json& config) {
  REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, ConfigFields(config, "config.json"));
  REPRISE_ASSIGN_OR_RETURN(const size_t kind, FindModelKind(fields, kGptKinds));
  REPRISE_RETURN_IF_ERROR(RefuseQuantization(fields));
  GptConfig result;
  result.family = static_cast<GptFamily>(kind);
  REPRISE_RETURN_IF_ERROR(result.family == GptFamily::kGpt2 ? ReadGpt2(fields, result)
                                                            : ReadBloom(fields, result));
  if (result.hidden_size % result.num_heads != 0) {
    return fields.Unexpected(
        fields.Find("n_head") != nullptr ? "n_head" : "num_attention_heads",
        absl::StrCat("a divisor of the hidden size (", result.hidden_size, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(result.vocab_size, ReadInt(fields, "vocab_size", kVocabRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> eps,
                           fields.OptionalDouble("layer_norm_epsilon", {.min = 1e-12, .max = 1}));
  result.layer_norm_eps = eps.value_or(result.layer_norm_eps);
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> tied,
                           fields.OptionalBool("tie_word_embeddings"));
  result.tie_word_embeddings = tied.value_or(true);
  REPRISE_ASSIGN_OR_RETURN(result.dtype, ReadWeightDType(fields));
  REPRISE_ASSIGN_OR_RETURN(result.eos_token_ids, WithEndTokens({}, fields, result.vocab_size));
  return result;
}

absl::StatusOr<GptConfig> LoadGptConfig(const std::string& folder) {
  return LoadModelConfig(folder, ParseGptConfig);
}

}  // namespace reprise
