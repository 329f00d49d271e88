// Configs of families for the tests of their readers. Testonly.

#ifndef REPRISE_MODELS_DECODER_FAMILY_CONFIGS_H_
#define REPRISE_MODELS_DECODER_FAMILY_CONFIGS_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {

// Returns the parsed config. Fails the test if the reader refuses it.
inline DecoderConfig Parsed(const nlohmann::json& config) {
  const absl::StatusOr<DecoderConfig> result = ParseDecoderConfig(config);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(DecoderConfig());
}

// Returns the reader's message, or "no error". Fails the test if the message has 300 characters or
// another code than InvalidArgument.
inline std::string ErrorOf(const nlohmann::json& config) {
  const absl::StatusOr<DecoderConfig> result = ParseDecoderConfig(config);
  if (result.ok()) return "no error";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_LT(result.status().message().size(), 300u);
  return std::string(result.status().message());
}

// Returns `config` with one member changed.
inline nlohmann::json With(nlohmann::json config, const std::string& name,
                           const nlohmann::json& value) {
  config[name] = value;
  return config;
}

// Returns the members that every family needs.
inline nlohmann::json Minimal(const char* class_name) {
  return {{"architectures", {class_name}},  {"hidden_size", 64},        {"intermediate_size", 96},
          {"max_position_embeddings", 512}, {"num_attention_heads", 4}, {"num_hidden_layers", 3},
          {"rms_norm_eps", 1e-5},           {"vocab_size", 256}};
}

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_FAMILY_CONFIGS_H_
