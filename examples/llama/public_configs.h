// config.json of published models, member by member, for tests and benchmarks.
//
//   const nlohmann::json config = PublicConfig("llama-3.1-8b");

#ifndef EXAMPLES_LLAMA_PUBLIC_CONFIGS_H_
#define EXAMPLES_LLAMA_PUBLIC_CONFIGS_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace reprise {

// "llama-3.1-8b", "qwen3-8b", "qwen2.5-7b", "mistral-7b", "gemma-2-2b".
// Errors: InvalidArgument naming them.
absl::StatusOr<nlohmann::json> PublicConfig(std::string_view name);

std::vector<std::string_view> PublicConfigNames();

// The same model in small: of 2 layers, 8 heads of 16 dims over 4 of KV, 64 tokens of vocabulary
// and of window, and of little width.
nlohmann::json InSmall(nlohmann::json config);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_PUBLIC_CONFIGS_H_
