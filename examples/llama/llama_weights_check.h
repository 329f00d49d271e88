// Whether weights are those of a config.

#ifndef EXAMPLES_LLAMA_LLAMA_WEIGHTS_CHECK_H_
#define EXAMPLES_LLAMA_LLAMA_WEIGHTS_CHECK_H_

#include "absl/status/status.h"
#include "examples/llama/llama_config.h"
#include "examples/llama/llama_weights.h"

namespace reprise {

// InvalidArgument, naming the tensor, unless all that the config asks for are there, with its
// shapes.
absl::Status CheckLlamaWeights(const LlamaConfig& config, const LlamaWeights& weights);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LLAMA_WEIGHTS_CHECK_H_
