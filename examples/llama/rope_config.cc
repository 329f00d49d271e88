#include "examples/llama/rope_config.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr DoubleRange kThetaRange = {.min = 1, .max = 1e12};
constexpr DoubleRange kFactorRange = {.min = 1, .max = 1e6};

absl::StatusOr<LinearRope> ReadLinear(const JsonFields& fields) {
  REPRISE_RETURN_IF_ERROR(
      fields.RefuseOthers({"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor"}));
  LinearRope rope;
  REPRISE_ASSIGN_OR_RETURN(rope.factor, fields.Double("factor", kFactorRange));
  return rope;
}

absl::StatusOr<Llama3Rope> ReadLlama3(const JsonFields& fields, int max_seq_len) {
  REPRISE_RETURN_IF_ERROR(fields.RefuseOthers(
      {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
       "high_freq_factor", "original_max_position_embeddings"}));
  Llama3Rope rope;
  REPRISE_ASSIGN_OR_RETURN(rope.factor, fields.Double("factor", kFactorRange));
  constexpr DoubleRange kFreqFactorRange = {.min = 1e-3, .max = 1e6};
  REPRISE_ASSIGN_OR_RETURN(rope.low_freq_factor,
                           fields.Double("low_freq_factor", kFreqFactorRange));
  REPRISE_ASSIGN_OR_RETURN(rope.high_freq_factor,
                           fields.Double("high_freq_factor", kFreqFactorRange));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return fields.Unexpected(
        "high_freq_factor", absl::StrCat("more than low_freq_factor (", rope.low_freq_factor, ")"));
  }
  REPRISE_ASSIGN_OR_RETURN(
      const std::optional<int64_t> original,
      fields.OptionalInt("original_max_position_embeddings", {.min = 1, .max = 1 << 28}));
  rope.original_max_seq_len = static_cast<int>(original.value_or(max_seq_len));
  return rope;
}

// The members of "rope_parameters" or "rope_scaling"; theta is read elsewhere.
absl::StatusOr<RopeConfig> ReadScaling(const JsonFields& fields, int max_seq_len) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                           fields.OptionalString("rope_type"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::string> old_type,
                           fields.OptionalString("type"));
  if (type && old_type && *type != *old_type) {
    return fields.Unexpected("type", absl::StrCat("the same as rope_type (\"", *type, "\")"));
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> partial,
                           fields.OptionalDouble("partial_rotary_factor", {}));
  if (partial.value_or(1) != 1) return fields.Unexpected("partial_rotary_factor", "1");

  RopeConfig rope;
  const std::string name = type ? *type : old_type.value_or("default");
  if (name == "default") {
    REPRISE_RETURN_IF_ERROR(
        fields.RefuseOthers({"rope_type", "type", "rope_theta", "partial_rotary_factor"}));
    rope.scaling = DefaultRope();
  } else if (name == "linear") {
    REPRISE_ASSIGN_OR_RETURN(rope.scaling, ReadLinear(fields));
  } else if (name == "llama3") {
    REPRISE_ASSIGN_OR_RETURN(rope.scaling, ReadLlama3(fields, max_seq_len));
  } else {
    return fields.Unexpected(type ? "rope_type" : "type", "\"default\", \"linear\" or \"llama3\"");
  }
  return rope;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const JsonFields& config, int max_seq_len) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> parameters,
                           config.OptionalObject("rope_parameters"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<JsonFields> scaling,
                           config.OptionalObject("rope_scaling"));
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> old_theta,
                           config.OptionalDouble("rope_theta", kThetaRange));
  if (parameters && scaling) {
    return config.Unexpected("rope_scaling", "nothing beside rope_parameters");
  }
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> partial,
                           config.OptionalDouble("partial_rotary_factor", {}));
  if (partial.value_or(1) != 1) return config.Unexpected("partial_rotary_factor", "1");

  if (config.Find("original_max_position_embeddings") != nullptr) {
    return config.Unexpected("original_max_position_embeddings", "it within rope_parameters");
  }

  RopeConfig rope;
  rope.theta = old_theta.value_or(kDefaultTheta);
  const std::optional<JsonFields>& form = parameters ? parameters : scaling;
  if (!form) return rope;
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> theta,
                           form->OptionalDouble("rope_theta", kThetaRange));
  if (theta && old_theta && *theta != *old_theta) {
    return form->Unexpected("rope_theta", absl::StrCat("that of the file (", *old_theta, ")"));
  }
  const double chosen_theta = theta.value_or(rope.theta);
  REPRISE_ASSIGN_OR_RETURN(rope, ReadScaling(*form, max_seq_len));
  rope.theta = chosen_theta;
  return rope;
}

}  // namespace reprise
