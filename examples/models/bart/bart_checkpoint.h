// A BART checkpoint of random values, for tests: the tensors of a folder, which can be changed and
// written again; and the logits by the paper's formulas.
//
//   BartCheckpoint checkpoint("tiny", config);
//   LoadBartWeights(checkpoint.folder(), config, {});
//   checkpoint.DenseLogits(encoder_tokens, tokens);
//
// Thread safety: as any object.

#ifndef REPRISE_MODELS_BART_BART_CHECKPOINT_H_
#define REPRISE_MODELS_BART_BART_CHECKPOINT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/types/span.h"
#include "reprise/models/bart/bart_config.h"

namespace reprise {

class BartCheckpoint {
 public:
  // Writes model.safetensors into a folder of that name among the temporary ones of tests. Weights
  // have a deviation that keeps lengths, so that attention is far from uniform; biases are not
  // small.
  BartCheckpoint(const std::string& name, const BartConfig& config);

  // Writes the tensors as they are now.
  void Write() const;

  const std::string& folder() const { return folder_; }
  std::map<std::string, at::Tensor>& tensors() { return tensors_; }
  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

  // Logits [num tokens, vocab_size] after each of the decoder's tokens, in float64, exactly by the
  // paper: no cache, no fused products, no code of BartModel.
  at::Tensor DenseLogits(absl::Span<const int32_t> encoder_tokens,
                         absl::Span<const int32_t> tokens) const;

 private:
  at::Tensor Double(const std::string& name) const;
  at::Tensor Project(const at::Tensor& x, const std::string& name) const;
  at::Tensor Norm(const at::Tensor& x, const std::string& name) const;
  at::Tensor Embed(absl::Span<const int32_t> tokens, const std::string& stack) const;
  // Attention and the norm that follows. `keys_from`: the source of the keys; `mask` is added to
  // scores.
  at::Tensor Attend(const at::Tensor& x, const at::Tensor& keys_from, const at::Tensor& mask,
                    int num_heads, const std::string& name) const;
  at::Tensor FeedForward(const at::Tensor& x, const std::string& layer) const;

  const BartConfig config_;
  std::string folder_;
  std::map<std::string, at::Tensor> tensors_;
};

}  // namespace reprise

#endif  // REPRISE_MODELS_BART_BART_CHECKPOINT_H_
