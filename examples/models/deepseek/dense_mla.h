// A plain DeepSeek-V2 decoder, for tests: float64, all tokens at once, no cache, keys and values
// expanded from latents for every head, as in the paper.
//
//   const at::Tensor expected = DenseLogits(*model, tokens);

#ifndef REPRISE_MODELS_DEEPSEEK_DENSE_MLA_H_
#define REPRISE_MODELS_DEEPSEEK_DENSE_MLA_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "reprise/models/deepseek/mla_model.h"

namespace reprise {

// What a cache would make of a layer's latents, rotated keys included, [num_tokens, latent_dim]:
// what it gives back is attended to.
using StoredLatents = std::function<at::Tensor(int layer, const at::Tensor& latents)>;

// [num_tokens, vocab_size] float64: the logits after each token, of a model on the CPU. `stored`:
// null for latents as they are.
at::Tensor DenseLogits(const MlaModel& model, const std::vector<int32_t>& tokens,
                       const StoredLatents& stored = nullptr);

}  // namespace reprise

#endif  // REPRISE_MODELS_DEEPSEEK_DENSE_MLA_H_
