// Unstable: any version may change this header (docs/embedding.md).
//
// A decoder as the runner sees it: layers of attention and a feed-forward or a mixture of experts,
// each normalised and added to the residual stream (Touvron et al., 2023).
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DecoderModel> model, DecoderModel::Load(folder, {}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(model.get(), {}));
//
// Everything that differs between models and families (sizes, biases, rotation, norms, windows,
// chunks, soft caps, experts, latents ...) is a choice by DecoderConfig, not another class:
// docs/models.md.
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
#include "reprise/models/decoder/decoder_attention.h"
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
  // Of models with MLA: AttentionOptions.
  int max_absorbed_query_len = 8;
  MlaCache mla_cache = MlaCache::kLatent;
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

  DecoderModel(const DecoderConfig& config, DecoderWeights weights,
               const DecoderModelOptions& options);
  void SetAttention(std::unique_ptr<DecoderAttention> attention, int max_position);

  float eps() const { return static_cast<float>(config_.rms_norm_eps); }

  // hidden = the tokens' embeddings; normed = the first layer's input.
  absl::Status Embed(const Step& step, Scratch& scratch) const;
  // Reads scratch.normed and leaves its output in scratch.summed, before the residual is added.
  absl::Status FeedForward(const Step& step, int layer, Scratch& scratch) const;
  // hidden += summed, itself normalised first if there is an output norm; normed = RMSNorm(hidden).
  absl::Status AddAndNormalise(const Step& step, const std::optional<at::Tensor>& output_norm,
                               const at::Tensor& norm, Scratch& scratch) const;

  const DecoderConfig config_;
  const DecoderWeights weights_;
  const DecoderModelOptions options_;
  std::unique_ptr<DecoderAttention> attention_;  // refers to config_ and weights_
  ModelSpec spec_;                               // points into attention_
  double embedding_scale_;                       // rounded, if the config says so
  ShardedVocabulary vocabulary_;
  SumBuffer hidden_memory_;  // of Scratch::hidden, which the embedding sums
  SumBuffer summed_memory_;  // of Scratch::summed
};

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_MODEL_H_
