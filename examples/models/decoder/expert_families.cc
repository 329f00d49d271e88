// Readers of the families whose feed-forward is a mixture of experts.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/config_fields.h"
#include "reprise/models/decoder/family_fields.h"
#include "reprise/models/moe/experts_config.h"

namespace reprise {
namespace {

constexpr IntRange kExpertsRange = {.min = 1, .max = 1 << 12};
constexpr IntRange kLayerRange = {.min = 0, .max = 1 << 20};

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

// transformers 5 writes num_local_experts for what older files call num_experts.
absl::StatusOr<ExpertsConfig> ReadQwenExperts(const JsonFields& fields, const char* inner_size,
                                              int64_t default_chosen) {
  const bool is_new = fields.Find("num_local_experts") != nullptr;
  if (is_new && fields.Find("num_experts") != nullptr) {
    return fields.Unexpected("num_experts", "nothing beside num_local_experts");
  }
  REPRISE_ASSIGN_OR_RETURN(ExpertsConfig experts,
                           ReadExperts(fields, is_new ? "num_local_experts" : "num_experts",
                                       inner_size, default_chosen));
  REPRISE_ASSIGN_OR_RETURN(experts.normalises, ReadFlag(fields, "norm_topk_prob", false));
  return experts;
}

// Qwen's dense layers: every layer n but those with (n + 1) % decoder_sparse_step == 0, and
// mlp_only_layers.
absl::Status ReadDenseLayersOfQwen(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                           fields.OptionalInt("decoder_sparse_step", {.min = 1, .max = 1 << 20}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> listed,
                           fields.OptionalInts("mlp_only_layers", kLayerRange));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const bool is_listed =
        listed.has_value() && std::find(listed->begin(), listed->end(), layer) != listed->end();
    config.is_dense.push_back(is_listed || (layer + 1) % step.value_or(1) != 0);
  }
  return absl::OkStatus();
}

// first_k_dense_replace: the number of dense layers, which come first.
absl::Status ReadFirstDenseLayers(const JsonFields& fields, int64_t absent, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_dense,
                           fields.OptionalInt("first_k_dense_replace", kLayerRange));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    config.is_dense.push_back(layer < num_dense.value_or(absent));
  }
  return absl::OkStatus();
}

// Where DeepSeek's models and their relatives differ.
struct DeepseekDefaults {
  int64_t num_chosen = 0;
  int64_t num_shared = 0;  // shared experts, which are one of as many times the size
  int64_t num_dense = 0;
  int64_t num_groups = 1;
  int64_t num_chosen_groups = 1;
  double scale = 1;
};

// Experts in DeepSeek's names: groups, shared experts, dense first layers and a factor.
absl::Status ReadDeepseekExperts(const JsonFields& fields, const DeepseekDefaults& defaults,
                                 DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> frequency,
                           fields.OptionalInt("moe_layer_freq", {}));
  if (frequency.value_or(1) != 1) return fields.Unexpected("moe_layer_freq", "1");
  REPRISE_ASSIGN_OR_RETURN(
      ExpertsConfig experts,
      ReadExperts(fields, "n_routed_experts", "moe_intermediate_size", defaults.num_chosen));
  experts.activation = config.activation;
  const auto number = [&](const char* name, int64_t absent, int64_t min) -> absl::StatusOr<int> {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> given,
                             fields.OptionalInt(name, {.min = min, .max = 1 << 12}));
    return static_cast<int>(given.value_or(absent));
  };
  REPRISE_ASSIGN_OR_RETURN(const int num_shared,
                           number("n_shared_experts", defaults.num_shared, 0));
  if (int64_t{num_shared} * experts.inner_size > kWidthRange.max) {
    return fields.Unexpected(
        "n_shared_experts",
        absl::StrCat("at most ", kWidthRange.max, " elements of all shared experts together"));
  }
  experts.shared_inner_size = num_shared * experts.inner_size;
  REPRISE_ASSIGN_OR_RETURN(experts.num_groups, number("n_group", defaults.num_groups, 1));
  REPRISE_ASSIGN_OR_RETURN(experts.num_chosen_groups,
                           number("topk_group", defaults.num_chosen_groups, 1));
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<double> scale,
      fields.OptionalDouble("routed_scaling_factor", {.min = 1e-6, .max = 1e6}));
  experts.scale = scale.value_or(defaults.scale);
  config.experts = experts;
  return ReadFirstDenseLayers(fields, defaults.num_dense, config);
}

// Sigmoid scores, with a bias for the choice: DeepSeek-V3 and GLM-4.5.
absl::Status ReadSigmoidRouting(const JsonFields& fields, ExpertsConfig& experts) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> scores,
                           fields.OptionalString("scoring_func"));
  if (scores.value_or("sigmoid") != "sigmoid") {
    return fields.Unexpected("scoring_func", "\"sigmoid\"");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> method,
                           fields.OptionalString("topk_method"));
  if (method.value_or("noaux_tc") != "noaux_tc") {
    return fields.Unexpected("topk_method", "\"noaux_tc\"");
  }
  experts.scores = RouterScores::kSigmoid;
  experts.choice_bias = true;
  experts.group_score = GroupScore::kTopTwo;
  REPRISE_ASSIGN_OR_RETURN(experts.normalises, ReadFlag(fields, "norm_topk_prob", true));
  return absl::OkStatus();
}

// Checks the experts of all layers. Messages name the file.
absl::Status Checked(const JsonFields& fields, const DecoderConfig& config) {
  // Each expert has a few names, which are listed before a checkpoint is read.
  constexpr int64_t kMaxExperts = 1 << 18;
  if (int64_t{config.num_layers} * config.experts->num_experts > kMaxExperts) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.where(), ": num_hidden_layers times the number of experts: expected at ", "most ",
        kMaxExperts, ", got ", config.num_layers, " * ", config.experts->num_experts));
  }
  const absl::Status status = CheckExperts(*config.experts);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(fields.where(), ": ", status.message()));
}

}  // namespace

absl::Status ReadQwen2Moe(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "qkv_bias", true));
  REPRISE_ASSIGN_OR_RETURN(const bool has_windows, ReadFlag(fields, "use_sliding_window", false));
  // Versions of transformers disagree about the layers that max_window_layers names.
  if (has_windows && fields.Find("layer_types") == nullptr) {
    return fields.Unexpected("layer_types", "a list beside use_sliding_window");
  }
  REPRISE_RETURN_IF_ERROR(ReadQwenWindows(fields, config));
  REPRISE_RETURN_IF_ERROR(ReadDenseLayersOfQwen(fields, config));
  REPRISE_ASSIGN_OR_RETURN(config.experts, ReadQwenExperts(fields, "moe_intermediate_size", 4));
  config.experts->activation = config.activation;
  REPRISE_ASSIGN_OR_RETURN(config.experts->shared_inner_size,
                           ReadInt(fields, "shared_expert_intermediate_size", kWidthRange));
  config.experts->shared_gate = true;
  config.experts->names.shared = "shared_expert";
  return Checked(fields, config);
}

absl::Status ReadQwen3Moe(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  config.qk_norm = QkNorm::kWeighted;
  REPRISE_ASSIGN_OR_RETURN(const bool has_windows, ReadFlag(fields, "use_sliding_window", false));
  // Unlike Qwen 3, transformers' class has a window in all layers or in none.
  REPRISE_RETURN_IF_ERROR(has_windows ? ReadWindowOfAllLayers(fields, 4096, config)
                                      : ReadQwenWindows(fields, config));
  REPRISE_RETURN_IF_ERROR(ReadDenseLayersOfQwen(fields, config));
  REPRISE_ASSIGN_OR_RETURN(config.experts, ReadQwenExperts(fields, "moe_intermediate_size", 8));
  config.experts->activation = config.activation;
  return Checked(fields, config);
}

absl::Status ReadMixtral(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadWindowOfAllLayers(fields, std::nullopt, config));
  REPRISE_ASSIGN_OR_RETURN(config.experts,
                           ReadExperts(fields, "num_local_experts", "intermediate_size", 2));
  config.experts->activation = config.activation;
  config.experts->names.prefix = "block_sparse_moe.";
  config.experts->names.gate = "w1";
  config.experts->names.up = "w3";
  config.experts->names.down = "w2";
  return Checked(fields, config);
}

absl::Status ReadOlmoe(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, false, config));
  if (fields.Find("clip_qkv") != nullptr) return fields.Unexpected("clip_qkv", "null");
  config.qk_norm = QkNorm::kAllHeads;
  REPRISE_ASSIGN_OR_RETURN(config.experts, ReadQwenExperts(fields, "intermediate_size", 8));
  config.experts->activation = config.activation;
  return Checked(fields, config);
}

absl::Status ReadGptOss(const JsonFields& fields, DecoderConfig& config) {
  if (config.activation != Activation::kSilu) return fields.Unexpected("hidden_act", "\"silu\"");
  REPRISE_RETURN_IF_ERROR(ReadAttentionBias(fields, true, config));
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
  config.experts->names.router = "router";
  REPRISE_RETURN_IF_ERROR(Checked(fields, config));
  return ReadAlternatingWindows(fields, 128, config);
}

absl::Status ReadGlm4Moe(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", false));
  REPRISE_ASSIGN_OR_RETURN(const bool norms, ReadFlag(fields, "use_qk_norm", false));
  if (norms) config.qk_norm = QkNorm::kWeighted;
  REPRISE_RETURN_IF_ERROR(
      ReadDeepseekExperts(fields, {.num_chosen = 8, .num_shared = 1, .num_dense = 1}, config));
  REPRISE_RETURN_IF_ERROR(ReadSigmoidRouting(fields, *config.experts));
  return Checked(fields, config);
}

absl::Status ReadDeepseekV2(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.mlp_bias, ReadFlag(fields, "mlp_bias", false));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_experts,
                           fields.OptionalInt("n_routed_experts", {.min = 0, .max = 1 << 12}));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> num_dense,
                           fields.OptionalInt("first_k_dense_replace", kLayerRange));
  if (num_experts.value_or(0) == 0 || num_dense.value_or(0) >= config.num_layers) {
    return absl::OkStatus();  // all layers are dense
  }
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "norm_topk_prob", false));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> scores,
                           fields.OptionalString("scoring_func"));
  if (scores.value_or("softmax") != "softmax") {
    return fields.Unexpected("scoring_func", "\"softmax\"");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> method,
                           fields.OptionalString("topk_method"));
  const bool has_groups = method == "group_limited_greedy";
  if (!has_groups && method.value_or("greedy") != "greedy") {
    return fields.Unexpected("topk_method", "\"greedy\" or \"group_limited_greedy\"");
  }
  REPRISE_RETURN_IF_ERROR(
      ReadDeepseekExperts(fields, {.num_chosen = 6, .num_shared = 2, .num_dense = 0}, config));
  config.experts->normalises = false;
  if (!has_groups) config.experts->num_groups = config.experts->num_chosen_groups = 1;
  return Checked(fields, config);
}

absl::Status ReadDeepseekV3(const JsonFields& fields, DecoderConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckIs(fields, "rope_interleave", true));
  REPRISE_RETURN_IF_ERROR(ReadDeepseekExperts(fields,
                                              {.num_chosen = 8,
                                               .num_shared = 1,
                                               .num_dense = 3,
                                               .num_groups = 8,
                                               .num_chosen_groups = 4,
                                               .scale = 2.5},
                                              config));
  REPRISE_RETURN_IF_ERROR(ReadSigmoidRouting(fields, *config.experts));
  return Checked(fields, config);
}

}  // namespace reprise
