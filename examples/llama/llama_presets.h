// Shapes of well-known Llama models, for benchmarks with random weights.
//
//   REPRISE_ASSIGN_OR_RETURN(LlamaConfig config, LlamaPreset("llama-3.1-8b"));

#ifndef EXAMPLES_LLAMA_LLAMA_PRESETS_H_
#define EXAMPLES_LLAMA_LLAMA_PRESETS_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "examples/llama/llama_config.h"

namespace reprise {

// "llama-3.1-8b", "llama-3.2-1b", or "jargon": the model that comes with the project.
// Errors: InvalidArgument naming the presets there are.
absl::StatusOr<LlamaConfig> LlamaPreset(std::string_view name);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LLAMA_PRESETS_H_
