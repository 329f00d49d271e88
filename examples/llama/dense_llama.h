// A model of the Llama kind written down plainly, for tests: float64, all tokens at once, no cache,
// each block by the letter of its paper.
//
//   const at::Tensor expected = DenseLogits(*model, tokens);

#ifndef EXAMPLES_LLAMA_DENSE_LLAMA_H_
#define EXAMPLES_LLAMA_DENSE_LLAMA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "examples/llama/llama_model.h"

namespace reprise {

// [num_tokens, vocab_size] float64: the logits after each token, of a model on the CPU.
at::Tensor DenseLogits(const LlamaModel& model, const std::vector<int32_t>& tokens);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_DENSE_LLAMA_H_
