// A plain DeepSeek-V2 decoder, for tests: float64, all tokens at once, no cache, keys and values
// expanded from latents for every head, as in the paper.
//
//   const at::Tensor expected = DenseLogits(*model, tokens);

#ifndef EXAMPLES_MODELS_DEEPSEEK_DENSE_MLA_H_
#define EXAMPLES_MODELS_DEEPSEEK_DENSE_MLA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "examples/models/deepseek/mla_model.h"

namespace reprise {

// [num_tokens, vocab_size] float64: the logits after each token, of a model on the CPU.
at::Tensor DenseLogits(const MlaModel& model, const std::vector<int32_t>& tokens);

}  // namespace reprise

#endif  // EXAMPLES_MODELS_DEEPSEEK_DENSE_MLA_H_
