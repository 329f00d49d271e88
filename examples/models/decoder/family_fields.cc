#include "reprise/models/decoder/family_fields.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

using nlohmann::json;

constexpr IntRange kSpanRange = {.min = 1, .max = 1 << 28};  // of a window or a chunk, in tokens

}  // namespace

absl::StatusOr<bool> ReadFlag(const JsonFields& fields, std::string_view name, bool absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<bool> flag, fields.OptionalBool(name));
  return flag.value_or(absent);
}

absl::Status CheckIs(const JsonFields& fields, std::string_view name, bool only) {
  REPRISE_ASSIGN_OR_RETURN(const bool flag, ReadFlag(fields, name, only));
  if (flag == only) return absl::OkStatus();
  return fields.Unexpected(name, only ? "true or null" : "false or null");
}

absl::StatusOr<std::optional<int>> ReadSpan(const JsonFields& fields, std::string_view name,
                                            int absent) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<int64_t> span, fields.OptionalInt(name, kSpanRange));
  if (span) return std::optional(static_cast<int>(*span));
  if (fields.object().contains(name)) return std::optional<int>();
  return std::optional(absent);
}

absl::StatusOr<double> ReadMultiplier(const JsonFields& fields, std::string_view name) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<double> factor,
                           fields.OptionalDouble(name, {.min = 1e-6, .max = 1e6}));
  return factor.value_or(1);
}

absl::StatusOr<std::optional<std::vector<bool>>> ReadLocalLayers(const JsonFields& fields,
                                                                 const DecoderConfig& config,
                                                                 std::string_view local) {
  if (fields.Find("layer_types") == nullptr) return std::optional<std::vector<bool>>();
  REPRISE_ASSIGN_OR_RETURN(const json* const types, fields.Array("layer_types"));
  const std::string expected =
      absl::StrCat("num_hidden_layers (", config.num_layers, ") times \"full_attention\" or \"",
                   std::string(local), "\"");
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

absl::Status ReadAttentionBias(const JsonFields& fields, bool absent, DecoderConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(config.qkv_bias, ReadFlag(fields, "attention_bias", absent));
  config.o_bias = config.qkv_bias;
  return absl::OkStatus();
}

absl::Status ReadWindowOfAllLayers(const JsonFields& fields, std::optional<int> absent,
                                   DecoderConfig& config) {
  std::optional<int> window;
  if (absent.has_value() || fields.Find("sliding_window") != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(window, ReadSpan(fields, "sliding_window", absent.value_or(1)));
  }
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

}  // namespace reprise
