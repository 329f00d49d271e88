// A model with any attention layers and random weights, small enough to run thousands of steps, and
// the same model computed densely in float64. For tests of how a runner implements layer specs.
//
//   LayeredModel model({.layers = {{.params = p}, {.params = p, .chunk_size = 8}}});
//   at::Tensor logits = model.DenseLogits(tokens, /*encoder_text=*/{});
//
// Each layer adds its attention to the residual stream. Positions are embedded, so every token that
// a layer attends to affects the logits. kEncoder layers compute the encoder's stream, from which
// kEncoderDecoder layers take keys and values.

#ifndef REPRISE_RUNNER_TESTING_LAYERED_MODEL_H_
#define REPRISE_RUNNER_TESTING_LAYERED_MODEL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

struct LayeredModelOptions {
  // sinks must not be set here: use sink_layers.
  std::vector<LayerSpec> layers = {};
  std::vector<int> sink_layers = {};  // layers that get random sinks
  // Whether attention of prompts is computed in two parts (Step::AttendWithin, AttendBefore).
  // kInTwoParts applies to layers with their own K and V, which must have full attention or a
  // window, and no sinks. All other layers attend at once.
  enum class Prompts { kAtOnce, kInTwoParts } prompts = Prompts::kAtOnce;
  // The hidden states: none; the residual stream from which the logits are computed; or a token's
  // position as a one-hot vector of max_position elements.
  enum class Hidden { kNone, kStream, kPosition } hidden = Hidden::kNone;
  DType dtype = DType::kFloat32;  // dtype of weights and activations
  int vocab_size = 61;
  int max_position = 256;
  int max_encoder_position = 0;
  c10::Device device = c10::kCPU;
  uint64_t seed = 1;
};

class LayeredModel : public Model {
 public:
  explicit LayeredModel(const LayeredModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;
  absl::Status Encode(const EncoderStep& step) override;

  // Returns the logits [text.size(), vocab_size] after each token of `text`, float64 on the CPU.
  at::Tensor DenseLogits(absl::Span<const int32_t> text,
                         absl::Span<const int32_t> encoder_text) const;

 private:
  struct Layer {
    std::optional<Linear> q, k, v, out;
  };

  // Returns the hidden states of all tokens after the last layer.
  absl::StatusOr<at::Tensor> Stream(const Step& step) const;
  // Adds the layer's attention output, after the projection `layer.out`, to x.
  absl::Status Add(LinearContext& linears, const Layer& layer, const at::Tensor& attended,
                   at::Tensor& x) const;
  absl::StatusOr<at::Tensor> AttendInTwoParts(const Step& step, int layer, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v) const;
  absl::StatusOr<at::Tensor> Heads(LinearContext& linears, const std::optional<Linear>& weight,
                                   int num_heads, const at::Tensor& x) const;
  // Returns the layer whose keys `layer` reads: itself or another layer.
  int SourceOf(int layer) const;
  // Returns x after layer `index`, in float64 on the CPU. `keys_from`: the stream from which the
  // keys are computed.
  at::Tensor DenseAttention(int index, const at::Tensor& x, const at::Tensor& keys_from) const;
  at::Tensor DenseEmbedding(absl::Span<const int32_t> text) const;

  LayeredModelOptions options_;
  ModelSpec spec_;
  at::Tensor token_embedding_;     // [vocab_size, width]
  at::Tensor position_embedding_;  // [positions, width]
  at::Tensor sinks_;               // [num_layers, max q heads]
  std::vector<Layer> layers_;
  std::optional<Linear> head_;  // [vocab_size, width]
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LAYERED_MODEL_H_
