// The interface of a model that a runner can run: its attention layers, and a forward pass over a
// Step.
//
//   class MyModel : public reprise::Model {
//    public:
//     const ModelSpec& spec() const override { return spec_; }
//     absl::StatusOr<at::Tensor> Forward(const Step& step) override {
//       at::Tensor x = embedding_.index_select(0, step.token_ids());
//       // If the model accepts embeddings: REPRISE_ASSIGN_OR_RETURN(x, step.Embed(x));
//       for (int layer = 0; layer < num_layers_; ++layer) {
//         ... q, k, v [num_tokens, heads, head_dim] from x, rotated by step.positions() ...
//         REPRISE_ASSIGN_OR_RETURN(at::Tensor out, step.Attend(layer, q, k, v));
//         ...
//       }
//       return Logits(x.index_select(0, step.logits_indices()));
//     }
//   };
//
// A model with an encoder (BART, T5) has three kinds of layers: kEncoder layers, which its Encode()
// uses; kEncoderDecoder layers, whose keys Encode() writes and Forward() attends to; and decoder
// layers.
//
//     absl::Status Encode(const EncoderStep& step) override {
//       ... x of step.token_ids(), step.positions() ...
//       for (each encoder layer) { x = ... step.Attend(layer, q, k, v) ... }
//       for (each cross layer) REPRISE_RETURN_IF_ERROR(step.WriteKeys(layer, k of x, v of x));
//       return absl::OkStatus();
//     }
//     // in Forward(): step.Attend(self_layer, q, k, v), then step.Attend(cross_layer, q)
//
// Forward() runs during graph capture: for decode steps, for steps with drafts and, unless
// GraphOptions::mixed is off, for mixed steps. It must enqueue the same work for every step of a
// shape. It may use the sizes of the step's tensors, but no host value that changes between steps
// and no value read back from the device, and it must not synchronise. ReplayCheck helps to find
// violations.
//
// Streams: Forward() and Encode() are called with the runner's stream and device current, and must
// enqueue their work there. LibTorch's ops do this by default. Work that was enqueued on the
// caller's current stream before ModelRunner::Create(), such as filling the weights, completes
// first.
//
// Errors: an error or an exception of Forward() or Encode() fails only the rows of that step
// (ModelRunner::Await()). If the model is sharded over ranks, it may also stop the other ranks
// (runner/rank_session.h).
//
// Thread safety: called by one thread. The model must outlive its runner, and its weights must keep
// their addresses.

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

class ShardedLogits;

struct ModelSpec {
  // One entry per attention layer, indexed by `layer` of Step::Attend(): what the layer computes,
  // which keys it reads, and how long it needs them. Pointers in entries are on `device`.
  std::vector<LayerSpec> layers;
  // Attention without a cache over the tokens of a step alone, in addition to a layer's own
  // attention; indexed by `attention` of Step::AttendWithin(). For prompts that are not computed in
  // the form of the cache, such as MLA without absorption.
  std::vector<AttentionParams> within = {};
  int vocab_size = 0;
  int max_position = 0;  // maximum length of a sequence
  // Maximum length of the encoder's input. 0: no encoder and no encoder-decoder layers.
  int max_encoder_position = 0;
  // dtype of activations, and also the cache's dtype unless CacheOptions::dtype is set
  DType dtype = DType::kFloat32;
  // Dtype of the logits that sampling reads: float32, or a 16-bit dtype, which rounds them.
  // nullopt: `dtype`.
  std::optional<DType> logits_dtype = {};
  // Number of elements of an embedding that callers may pass instead of a token id; the elements
  // have type `dtype` (Step::Embed()). 0: the model accepts only token ids.
  int input_embedding_dim = 0;
  // Number of components of a token's position; more than 1 for M-RoPE. If more than 1, callers may
  // pass the positions of a prompt, and step.positions() has one row per component.
  int num_position_dims = 1;
  // Number of elements of the hidden states that Forward() passes to Step::KeepHidden(); the
  // elements have type `dtype`. 0: draft heads cannot read the model.
  int hidden_dim = 0;
  // Set by a model that shards its logits over ranks and can write its shard to
  // Step::sharded_logits(). With DebugOptions::sample_shards, sampling gathers candidates instead
  // of logits if the parameters of all rows allow it (runner/ranks/shard_sampler.h). Null: logits
  // are whole. Must live as long as the model.
  ShardedLogits* sharded_logits = nullptr;
  // A GPU without an index: the GPU that is current in ModelRunner::Create().
  c10::Device device = c10::kCPU;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelSpec& spec() const = 0;

  // Computes logits [num_logits, vocab_size] for the tokens step.logits_indices(). Logits with a
  // dtype other than spec().logits_dtype are converted. To save a copy, write the logits into
  // step.logits() and return that tensor.
  virtual absl::StatusOr<at::Tensor> Forward(const Step& step) = 0;

  // For models with an encoder: encodes the inputs of this pass, and writes the keys and values
  // that the encoder-decoder layers attend to with step.WriteKeys(). Never captured. Called before
  // the first Forward() of the sequences. The default returns Unimplemented.
  virtual absl::Status Encode(const EncoderStep& step) {
    static_cast<void>(step);
    return absl::UnimplementedError("this model has no encoder");
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_MODEL_H_
