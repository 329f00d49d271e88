// A plain decoder, for tests: float64, all tokens at once, no cache, each block exactly by its
// paper.
//
//   const at::Tensor expected = DenseLogits(*model, tokens);

#ifndef REPRISE_MODELS_DECODER_DENSE_DECODER_H_
#define REPRISE_MODELS_DECODER_DENSE_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "reprise/models/decoder/decoder_model.h"

namespace reprise {

// What a cache would make of a layer's keys and values, [num_kv_heads, num_tokens, head_dim] each:
// what it gives back is attended to.
struct DenseStorage {
  using Stored = std::function<at::Tensor(int layer, const at::Tensor& x)>;
  Stored keys = nullptr;  // null: as they are
  Stored values = nullptr;
  Stored latents = nullptr;  // of MLA: [num_tokens, latent_dim]
};

// [num_tokens, vocab_size] float64: the logits after each token, of a model on the CPU.
at::Tensor DenseLogits(const DecoderModel& model, const std::vector<int32_t>& tokens,
                       const DenseStorage& storage = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DENSE_DECODER_H_
