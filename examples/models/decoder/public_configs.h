// Unstable: any version may change this header (docs/embedding.md).
//
// config.json of published models, member by member, for tests and benchmarks.
//
//   REPRISE_ASSIGN_OR_RETURN(nlohmann::json json, PublicConfig("llama-3.1-8b"));
//   REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LlamaPreset("llama-3.1-8b"));
//
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_DECODER_PUBLIC_CONFIGS_H_
#define REPRISE_MODELS_DECODER_PUBLIC_CONFIGS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {

// "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen2.5-7b", "mistral-7b", "gemma-2-2b", or
// "jargon": the model that comes with the project. Errors: InvalidArgument naming them.
absl::StatusOr<nlohmann::json> PublicConfig(std::string_view name);

// The same, parsed.
absl::StatusOr<DecoderConfig> LlamaPreset(std::string_view name);

// The names that PublicConfig() accepts.
std::vector<std::string_view> PublicConfigNames();

// The same model in small: 2 layers, 8 query heads of 16 dims, 4 KV heads, a vocabulary and a
// window of 64 tokens, and a small width.
nlohmann::json InSmall(nlohmann::json config);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_PUBLIC_CONFIGS_H_
