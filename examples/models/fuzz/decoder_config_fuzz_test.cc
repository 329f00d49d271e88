// Any bytes as config.json: refused, or the numbers fit together as decoder_config.h promises.

#include <glog/logging.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/rope.h"
#include "reprise/hf/strict_json.h"
#include "reprise/models/decoder/decoder_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<nlohmann::json> value =
      reprise::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!value.ok()) return 0;
  const absl::StatusOr<reprise::DecoderConfig> config = reprise::ParseDecoderConfig(*value);
  if (!config.ok()) return 0;
  CHECK_EQ(config->num_q_heads % config->num_kv_heads, 0);
  CHECK_GT(config->hidden_size, 0);
  CHECK_GT(config->rms_norm_eps, 0);
  CHECK(config->attention.empty() ||
        config->attention.size() == static_cast<size_t>(config->num_layers));
  for (const reprise::LayerAttention& layer : config->attention) {
    CHECK(layer.window.value_or(1) > 0 && layer.chunk.value_or(1) > 0);
  }
  CHECK_GT(reprise::RopeAttentionFactor(config->rope), 0);
  for (const float frequency : reprise::RopeFrequencies(config->rope, config->rotary_dim())) {
    CHECK(std::isfinite(frequency)) << frequency;
    CHECK_GE(frequency, 0);
  }
  const absl::StatusOr<reprise::DecoderConfig> merged =
      reprise::WithGenerationConfig(*config, *value);
  CHECK(merged.ok()) << merged.status();  // the same end tokens once more
  CHECK(merged->eos_token_ids == config->eos_token_ids);
  return 0;
}
