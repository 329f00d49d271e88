#include "reprise/hf/rope.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// One pair of a head's elements, of `num_pairs`, and its plain frequency in radians a token.
struct Pair {
  int index = 0;
  int num_pairs = 0;
  double theta = 0;
  float frequency = 0;
};

// One overload per kind of scaling; each returns the pair's frequency.
float Scale(const DefaultRope&, const Pair& pair) { return pair.frequency; }

float Scale(const LinearRope& rope, const Pair& pair) {
  return pair.frequency / static_cast<float>(rope.factor);
}

float Scale(const Llama3Rope& rope, const Pair& pair) {
  const float frequency = pair.frequency;
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float original = static_cast<float>(rope.original_max_seq_len);
  const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wave > static_cast<float>(rope.original_max_seq_len / rope.low_freq_factor)) {
    return frequency / factor;
  }
  if (rope.low_freq_factor == rope.high_freq_factor ||
      wave < static_cast<float>(rope.original_max_seq_len / rope.high_freq_factor)) {
    return frequency;
  }
  const float kept =
      (original / wave - low) / static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1 - kept) * frequency / factor + kept * frequency;
}

// The pair, as a fraction of one, that turns `num_turns` times within the original length.
double PairOfTurns(const YarnRope& rope, const Pair& pair, double num_turns) {
  const double turns_ratio = rope.original_max_seq_len / (num_turns * 2 * std::numbers::pi);
  return 2 * pair.num_pairs * std::log(turns_ratio) / (2 * std::log(pair.theta));
}

float Scale(const YarnRope& rope, const Pair& pair) {
  double low = PairOfTurns(rope, pair, rope.beta_fast);
  double high = PairOfTurns(rope, pair, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, 2.0 * pair.num_pairs - 1);
  if (low == high) high += 0.001;  // as transformers does, against a division by zero
  const float ramp =
      (static_cast<float>(pair.index) - static_cast<float>(low)) / static_cast<float>(high - low);
  const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
  const float plain = 1.0f / pair.frequency;
  const float interpolated = 1.0f / (static_cast<float>(rope.factor) * plain);
  return interpolated * (1 - kept) + pair.frequency * kept;
}

constexpr DoubleRange kThetaRange = {.min = 1, .max = 1e12};
constexpr DoubleRange kFactorRange = {.min = 1, .max = 1e6};
constexpr DoubleRange kFractionRange = {.min = 1e-3, .max = 1};

// Refuses members that are neither among `known` nor read elsewhere.
absl::Status RefuseOthers(const JsonFields& fields, const RopeDefaults& defaults,
                          std::initializer_list<std::string_view> own) {
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta",
                                         "partial_rotary_factor"};
  known.insert(known.end(), own.begin(), own.end());
  known.insert(known.end(), defaults.other_members.begin(), defaults.other_members.end());
  return fields.RefuseOthers(known);
}

absl::StatusOr<LinearRope> ReadLinear(const JsonFields& fields, const RopeDefaults& defaults) {
  REPRISE_RETURN_IF_ERROR(RefuseOthers(fields, defaults, {"factor"}));
  LinearRope rope;
  REPRISE_ASSIGN_OR_RETURN(rope.factor, fields.Double("factor", kFactorRange));
  return rope;
}

// The original length that scaling started from.
absl::StatusOr<int> ReadOriginalLength(const JsonFields& fields, int max_seq_len) {
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> original,
      fields.OptionalInt("original_max_position_embeddings", {.min = 1, .max = 1 << 28}));
  return static_cast<int>(original.value_or(max_seq_len));
}

absl::StatusOr<Llama3Rope> ReadLlama3(const JsonFields& fields, const RopeDefaults& defaults) {
  REPRISE_RETURN_IF_ERROR(RefuseOthers(
      fields, defaults,
      {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}));
  Llama3Rope rope;
  REPRISE_ASSIGN_OR_RETURN(rope.factor, fields.Double("factor", kFactorRange));
  constexpr DoubleRange kFreqFactorRange = {.min = 1e-3, .max = 1e6};
  REPRISE_ASSIGN_OR_RETURN(rope.low_freq_factor,
                           fields.Double("low_freq_factor", kFreqFactorRange));
  REPRISE_ASSIGN_OR_RETURN(rope.high_freq_factor,
                           fields.Double("high_freq_factor", kFreqFactorRange));
  if (rope.high_freq_factor < rope.low_freq_factor) {
    return fields.Unexpected("high_freq_factor",
                             absl::StrCat("at least low_freq_factor (", rope.low_freq_factor, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(rope.original_max_seq_len,
                           ReadOriginalLength(fields, defaults.max_seq_len));
  return rope;
}

absl::StatusOr<double> ReadAttentionFactor(const JsonFields& fields, double factor) {
  constexpr DoubleRange kRange = {.min = 1e-3, .max = 1e3};
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> given,
                           fields.OptionalDouble("attention_factor", kRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> multiplier,
                           fields.OptionalDouble("attn_factor", kRange));
  if (given && multiplier.value_or(1) != 1) {
    return fields.Unexpected("attn_factor", "nothing beside attention_factor");
  }
  constexpr DoubleRange kMScaleRange = {.min = 0, .max = 1e3};
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> mscale,
                           fields.OptionalDouble("mscale", kMScaleRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> mscale_all_dim,
                           fields.OptionalDouble("mscale_all_dim", kMScaleRange));
  if (given) return *given;
  // Zero counts as absent, as in transformers.
  const bool has_ratio = mscale.value_or(0) != 0 && mscale_all_dim.value_or(0) != 0;
  const double scale = has_ratio ? YarnMScale(factor, *mscale) / YarnMScale(factor, *mscale_all_dim)
                                 : YarnMScale(factor, 1);
  return scale * multiplier.value_or(1);
}

// Members that the authors of YaRN write and that choose nothing here. Errors: InvalidArgument for
// a value that would choose something.
absl::Status CheckYarnMarks(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(fields.OptionalBool("finetuned").status());
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> extrapolation,
                           fields.OptionalDouble("extrapolation_factor", {}));
  if (extrapolation.value_or(1) == 1) return absl::OkStatus();
  return fields.Unexpected("extrapolation_factor", "1");
}

absl::StatusOr<YarnRope> ReadYarn(const JsonFields& fields, const RopeDefaults& defaults) {
  REPRISE_RETURN_IF_ERROR(
      RefuseOthers(fields, defaults,
                   {"factor", "attention_factor", "attn_factor", "beta_fast", "beta_slow", "mscale",
                    "mscale_all_dim", "original_max_position_embeddings", "truncate", "finetuned",
                    "extrapolation_factor"}));
  const int max_seq_len = defaults.max_seq_len;
  REPRISE_RETURN_IF_ERROR(CheckYarnMarks(fields));
  YarnRope rope;
  REPRISE_ASSIGN_OR_RETURN(rope.original_max_seq_len, ReadOriginalLength(fields, max_seq_len));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> factor,
                           fields.OptionalDouble("factor", kFactorRange));
  if (!factor && fields.Find("original_max_position_embeddings") == nullptr) {
    return fields.Unexpected("factor", "a number, or original_max_position_embeddings");
  }
  rope.factor = factor.value_or(static_cast<double>(max_seq_len) / rope.original_max_seq_len);
  if (rope.factor < 1) {
    return fields.Unexpected("original_max_position_embeddings",
                             absl::StrCat("at most max_position_embeddings (", max_seq_len, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(rope.attention_factor, ReadAttentionFactor(fields, rope.factor));
  constexpr DoubleRange kBetaRange = {.min = 1e-3, .max = 1e6};
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> fast,
                           fields.OptionalDouble("beta_fast", kBetaRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> slow,
                           fields.OptionalDouble("beta_slow", kBetaRange));
  rope.beta_fast = fast.value_or(rope.beta_fast);
  rope.beta_slow = slow.value_or(rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) {
    return fields.Unexpected(fast ? "beta_fast" : "beta_slow",
                             absl::StrCat("beta_slow (", rope.beta_slow,
                                          ") to be at most beta_fast (", rope.beta_fast, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> truncate, fields.OptionalBool("truncate"));
  rope.truncate = truncate.value_or(true);
  return rope;
}

// The members of "rope_parameters" or "rope_scaling"; theta and the part that rotates are read
// elsewhere.
absl::StatusOr<RopeScaling> ReadScaling(const JsonFields& fields, const RopeDefaults& defaults) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                           fields.OptionalString("rope_type"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> old_type,
                           fields.OptionalString("type"));
  if (type && old_type && *type != *old_type) {
    return fields.Unexpected("type", absl::StrCat("the same as rope_type (\"", *type, "\")"));
  }
  const std::string name = type ? *type : old_type.value_or("default");
  if (name == "default") {
    REPRISE_RETURN_IF_ERROR(RefuseOthers(fields, defaults, {}));
    return DefaultRope();
  }
  if (name == "linear") return ReadLinear(fields, defaults);
  if (name == "llama3") return ReadLlama3(fields, defaults);
  if (name == "yarn") return ReadYarn(fields, defaults);
  return fields.Unexpected(type ? "rope_type" : "type",
                           "\"default\", \"linear\", \"llama3\" or \"yarn\"");
}

}  // namespace

std::vector<float> RopeFrequencies(const RopeConfig& config, int rotary_dim) {
  CHECK_GT(rotary_dim, 0);
  CHECK_EQ(rotary_dim % 2, 0);
  const float theta = static_cast<float>(config.theta);
  std::vector<float> frequencies;
  for (int i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    const Pair pair = {.index = i / 2,
                       .num_pairs = rotary_dim / 2,
                       .theta = config.theta,
                       .frequency = 1.0f / std::pow(theta, exponent)};
    frequencies.push_back(
        std::visit([&](const auto& scaling) { return Scale(scaling, pair); }, config.scaling));
  }
  return frequencies;
}

double YarnMScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

absl::StatusOr<std::optional<JsonFields>> RopeForm(const JsonFields& config) {
  REPRISE_ASSIGN_OR_RETURN(std::optional<JsonFields> form,
                           config.OptionalObject("rope_parameters"));
  if (form.has_value()) return form;
  return config.OptionalObject("rope_scaling");
}

double RopeAttentionFactor(const RopeConfig& config) {
  const YarnRope* const yarn = std::get_if<YarnRope>(&config.scaling);
  return yarn != nullptr ? yarn->attention_factor : 1;
}

absl::StatusOr<LayerRopes> ReadLayerRopes(const JsonFields& config, const RopeDefaults& defaults,
                                          double window_theta) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> window,
                           config.OptionalDouble("rope_local_base_freq", kThetaRange));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> theta,
                           config.OptionalDouble("rope_theta", kThetaRange));
  RopeDefaults full_defaults = defaults;
  full_defaults.theta = theta.value_or(defaults.theta);
  RopeDefaults window_defaults = defaults;
  window_defaults.theta = window.value_or(window_theta);
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> parameters,
                           config.OptionalObject("rope_parameters"));
  LayerRopes ropes;
  const bool is_nested = parameters && (parameters->Find("full_attention") != nullptr ||
                                        parameters->Find("sliding_attention") != nullptr);
  if (!is_nested) {
    REPRISE_ASSIGN_OR_RETURN(ropes.full, ReadRopeConfig(config, defaults));
    ropes.window.theta = window_defaults.theta;
    return ropes;
  }
  REPRISE_RETURN_IF_ERROR(parameters->RefuseOthers({"full_attention", "sliding_attention"}));
  // As if each kind of layer had a file of its own.
  const auto read = [&](const char* kind,
                        const RopeDefaults& of_kind) -> absl::StatusOr<RopeConfig> {
    nlohmann::json alone = config.object();
    alone.erase("rope_theta");
    alone["rope_parameters"] = parameters->object().value(kind, nlohmann::json());
    REPRISE_ASSIGN_OR_RETURN(
        const JsonFields fields,
        JsonFields::Of(alone, absl::StrCat(config.where(), ": rope_parameters.", kind),
                       config.integers()));
    return ReadRopeConfig(fields, of_kind);
  };
  REPRISE_ASSIGN_OR_RETURN(ropes.full, read("full_attention", full_defaults));
  REPRISE_ASSIGN_OR_RETURN(ropes.window, read("sliding_attention", window_defaults));
  return ropes;
}

absl::StatusOr<RopeConfig> ReadRopeConfig(const JsonFields& config, const RopeDefaults& defaults) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> parameters,
                           config.OptionalObject("rope_parameters"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> scaling,
                           config.OptionalObject("rope_scaling"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> old_theta,
                           config.OptionalDouble("rope_theta", kThetaRange));
  if (parameters && scaling) {
    return config.Unexpected("rope_scaling", "nothing beside rope_parameters");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> fraction,
                           config.OptionalDouble("partial_rotary_factor", kFractionRange));
  if (!defaults.has_original_length && config.Find("original_max_position_embeddings") != nullptr) {
    return config.Unexpected("original_max_position_embeddings", "it within rope_parameters");
  }

  RopeConfig rope;
  rope.theta = old_theta.value_or(defaults.theta);
  rope.rotary_fraction = fraction.value_or(defaults.rotary_fraction);
  const std::optional<JsonFields>& form = parameters ? parameters : scaling;
  if (!form) return rope;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> theta,
                           form->OptionalDouble("rope_theta", kThetaRange));
  if (theta && old_theta && *theta != *old_theta) {
    return form->Unexpected("rope_theta", absl::StrCat("that of the file (", *old_theta, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> own_fraction,
                           form->OptionalDouble("partial_rotary_factor", kFractionRange));
  if (own_fraction && fraction && *own_fraction != *fraction) {
    return form->Unexpected("partial_rotary_factor",
                            absl::StrCat("that of the file (", *fraction, ")"));
  }
  rope.theta = theta.value_or(rope.theta);
  rope.rotary_fraction = own_fraction.value_or(rope.rotary_fraction);
  REPRISE_ASSIGN_OR_RETURN(rope.scaling, ReadScaling(*form, defaults));
  if (std::holds_alternative<YarnRope>(rope.scaling) && rope.theta < 1.001) {
    return absl::InvalidArgumentError(absl::StrCat(
        form->where(), ": rope_theta: expected more than 1.001 with yarn, got ", rope.theta));
  }
  return rope;
}

}  // namespace reprise
