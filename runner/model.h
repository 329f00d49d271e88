// The interface of a model that can be run: its attention layers, and a forward pass over a Step.
//
//   class MyModel : public reprise::Model {
//    public:
//     const ModelSpec& spec() const override { return spec_; }
//     absl::StatusOr<at::Tensor> Forward(const Step& step) override {
//       at::Tensor x = embedding_.index_select(0, step.token_ids());
//       // if it takes embeddings: REPRISE_ASSIGN_OR_RETURN(x, step.Embed(x));
//       for (int layer = 0; layer < num_layers_; ++layer) {
//         ... q, k, v [num_tokens, heads, head_dim] from x, rotated by step.positions() ...
//         REPRISE_ASSIGN_OR_RETURN(at::Tensor out, step.Attend(layer, q, k, v));
//         ...
//       }
//       return Logits(x.index_select(0, step.logits_indices()));
//     }
//   };
//
// A model with an encoder (BART, T5) has layers of three kinds: kEncoder layers, which its Encode()
// attends with; kEncoderDecoder layers, whose keys Encode() writes and Forward() attends to; and
// its decoder's own.
//
//     absl::Status Encode(const EncoderStep& step) override {
//       ... x of step.token_ids(), step.positions() ...
//       for (each encoder layer) { x = ... step.Attend(layer, q, k, v) ... }
//       for (each cross layer) REPRISE_RETURN_IF_ERROR(step.WriteKeys(layer, k of x, v of x));
//       return absl::OkStatus();
//     }
//     // in Forward(): step.Attend(self_layer, q, k, v), then step.Attend(cross_layer, q)
//
// Forward runs inside graph capture, of decode steps and, unless GraphOptions::mixed
// is off, of steps with several tokens a row. It must enqueue the same work for every step of a
// shape: it may use the sizes of the step's tensors, but no host value that changes from step to
// step, no value read back from the device, and no synchronisation. ReplayCheck finds what differs.
//
// Streams: Forward and Encode are called with the runner's stream and device current, and enqueue
// their work there, LibTorch's ops by themselves. What the stream that is current in
// ModelRunner::Create() was given before, such as filling the weights, is done first.
//
// Errors: an error or an exception of Forward or Encode fails the rows of that step, no others
// (ModelRunner::Await).
//
// Thread safety: called by one thread. The model must outlive its runner and keep its weights at
// unchanged addresses.

#ifndef REPRISE_RUNNER_MODEL_H_
#define REPRISE_RUNNER_MODEL_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/encoder_step.h"
#include "reprise/runner/step.h"

namespace reprise {

class DividedLogits;

struct ModelSpec {
  // One entry per attention layer, in the order of `layer` in Step::Attend: what it computes, which
  // keys it reads, how long it needs them. Pointers in it are on `device`.
  std::vector<LayerSpec> layers;
  // Attention without a cache over the tokens of a step alone, in addition to a layer's own
  // attention: `attention` in Step::AttendWithin. For prompts in another form than the cache's
  // (MLA, not absorbed).
  std::vector<AttentionParams> within = {};
  int vocab_size = 0;
  int max_position = 0;  // the longest sequence the model can serve
  // The longest input of its encoder. 0: it has none, and no encoder-decoder layers.
  int max_encoder_position = 0;
  // of activations, and of the cache unless the runner is told otherwise
  DType dtype = DType::kFloat32;
  // Of the logits that sampling reads: float32, or a 16-bit dtype, which rounds them. nullopt:
  // dtype.
  std::optional<DType> logits_dtype = {};
  // Elements of an embedding that callers may bring in place of a token id's, of `dtype`: what
  // Step::Embed() puts in. 0: the model takes token ids only.
  int input_embedding_dim = 0;
  // Of a token's position, as in M-RoPE. With several, callers may bring those of a prompt, and
  // step.positions() has a row for each dimension.
  int num_position_dims = 1;
  // Elements of a hidden state that Forward() gives to Step::KeepHidden(), of `dtype`. 0: draft heads
  // cannot read the model.
  int hidden_dim = 0;
  // Set by a model that divides its logits over ranks and can leave its share in
  // Step::divided_logits(). If the parameters of all rows allow it, sampling then gathers candidates
  // and no logits (runner/ranks/shard_sampler.h). Null: logits are whole. Must live as long as the
  // model.
  DividedLogits* divided_logits = nullptr;
  // A GPU without an index: the one that is current in ModelRunner::Create().
  c10::Device device = c10::kCPU;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;

  // Returns logits [num_logits, vocab_size] of the tokens step.logits_indices(); another dtype than
  // spec().logits_dtype is converted. Writing them into step.logits() and returning that saves a
  // copy.
  virtual absl::StatusOr<at::Tensor> Forward(const Step& step) = 0;

  // Models with an encoder: encodes the inputs of this pass and writes the keys and values that the
  // encoder-decoder layers attend to, by step.WriteKeys(). Never captured. Called before the first
  // Forward() of the sequences. Unimplemented for models without an encoder.
  virtual absl::Status Encode(const EncoderStep& step) {
    static_cast<void>(step);
    return absl::UnimplementedError("this model has no encoder");
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_MODEL_H_
