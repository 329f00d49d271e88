// Unstable: any version may change this header (docs/embedding.md).
//
// Llama and its relatives as the runner sees them: decoder layers of grouped-query attention with
// rotary embedding and a gated feed-forward, normalised by RMSNorm (Touvron et al., 2023).
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DecoderModel> model, DecoderModel::Load(folder, {}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(model.get(), {}));
//
// Everything that differs between models and families (sizes, biases, rotation, norms, windows,
// chunks, soft caps ...) is a choice by DecoderConfig in here, not another class: docs/models.md.
//
// Host decisions of a forward pass depend only on the sizes of the step's tensors, so it may be
// captured. Activations are of the weights' dtype; norms, rotations, softmax and gates are computed
// in float32 and rounded where Hugging Face's models round.
//
// Thread safety: as Model.

#ifndef REPRISE_MODELS_DECODER_DECODER_MODEL_H_
#define REPRISE_MODELS_DECODER_DECODER_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ranks/over_ranks.h"
#include "reprise/runner/step.h"

namespace reprise {

struct DecoderModelOptions {
  // Positions to serve: the number of rows of the rotary table, each of head_dim float32. nullopt:
  // the config's max_seq_len, which it must not exceed.
  std::optional<int> max_position = {};
  // Whether requests may bring embeddings in place of token ids (ModelSpec::input_embedding_dim):
  // rows of hidden_size, already scaled where the model scales those of its tokens.
  bool takes_embeddings = false;
  // The ranks that the model is divided over, this process among them; must outlive the model.
  // Null: one rank. Every rank has the same config and options, weights of its own, and runs the
  // same steps (docs/distributed.md).
  Collectives* collectives = nullptr;
  // The ranks that the keys of each sequence are divided over, for a runner with
  // RankOptions::context_ranks; must outlive the model. Null: this rank has all keys of
  // its heads. With `collectives`: groups of a grid (distributed/rank_grid.h).
  Collectives* context = nullptr;
};

class DecoderModel : public Model {
 public:
  // A model over loaded weights, on their device. Errors: InvalidArgument if they are not of the
  // config's shapes on this rank, max_position is out of range, or both weights and keys are to be
  // divided; those of DecoderConfigOfRank() and MakeRotaryTable().
  static absl::StatusOr<std::unique_ptr<DecoderModel>> Create(const DecoderConfig& config,
                                                              DecoderWeights weights,
                                                              const DecoderModelOptions& options);

  // The model of a Hugging Face folder; load.ranks are those of options.collectives. Errors: those
  // of LoadDecoderConfig(), LoadDecoderWeights() and Create().
  static absl::StatusOr<std::unique_ptr<DecoderModel>> Load(
      const std::string& folder, const LoadWeightsOptions& load,
      const DecoderModelOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  const DecoderConfig& config() const { return config_; }  // of this rank (DecoderConfigOfRank())
  const DecoderWeights& weights() const { return weights_; }

 private:
  struct Scratch;

  // What layers need that is neither weight nor activation.
  struct Tables {
    at::Tensor rotary;              // [max_position, head_dim] float32
    at::Tensor window_rotary;       // the same, of layers with a window
    std::vector<at::Tensor> sinks;  // one per layer, [num_q_heads] float32; or empty
  };

  DecoderModel(const DecoderConfig& config, DecoderWeights weights, Tables tables, int max_position,
               const DecoderModelOptions& options);
  static std::vector<LayerSpec> MakeLayerSpecs(const DecoderConfig& config,
                                               const DecoderWeights& weights, const Tables& tables);

  float eps() const { return static_cast<float>(config_.rms_norm_eps); }

  // hidden = the tokens' embeddings; normed = the first layer's input.
  absl::Status Embed(const Step& step, Scratch& scratch) const;
  // Both read scratch.normed and leave their output there, before the residual is added.
  absl::Status Attention(const Step& step, int layer, Scratch& scratch) const;
  absl::Status FeedForward(const Step& step, int layer, Scratch& scratch) const;
  // From the projections q, k, v: writes the cache, attends. [num_tokens, num_q_heads, head_dim].
  absl::StatusOr<at::Tensor> Attend(const Step& step, int layer, Scratch& scratch) const;
  // hidden += normed, itself normalised first if there is an output norm; normed = RMSNorm(hidden).
  absl::Status AddAndNormalise(const Step& step, const std::optional<at::Tensor>& output_norm,
                               const at::Tensor& norm, Scratch& scratch) const;

  DecoderConfig config_;
  DecoderWeights weights_;
  Tables tables_;  // before the spec, which points into it
  ModelSpec spec_;
  double embedding_scale_;  // rounded to the dtype
  Collectives* collectives_;
  Collectives* context_;
  ShardedVocabulary vocabulary_;
  SumBuffer hidden_memory_;  // of Scratch::hidden, which the embedding sums
  SumBuffer summed_memory_;  // of Scratch::summed
};

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_MODEL_H_
