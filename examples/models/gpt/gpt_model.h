// Unstable: any version may change this header (docs/embedding.md).
//
// GPT-2 and BLOOM as the runner sees them: decoder layers of attention with as many KV heads as
// query heads and a feed-forward by GELU, each after a norm of mean and variance.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<GptModel> model, GptModel::Load(folder, {}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(model.get(), {}));
//
// GPT-2 adds a learned row for each position to the embedding. BLOOM has none: its scores are
// lowered in proportion to the distance, by a slope for each head (attention/alibi_slopes.h).
//
// Host decisions of a forward pass depend only on the sizes of the step's tensors, so it may be
// captured. Thread safety: as Model.

#ifndef REPRISE_MODELS_GPT_GPT_MODEL_H_
#define REPRISE_MODELS_GPT_GPT_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"
#include "reprise/models/gpt/gpt_config.h"
#include "reprise/models/gpt/gpt_weights.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ranks/over_ranks.h"
#include "reprise/runner/step.h"

namespace reprise {

struct GptModelOptions {
  // Positions to serve. nullopt: the config's max_seq_len, which it must not exceed.
  std::optional<int> max_position = {};
  // The ranks that the model is divided over, this process among them; must outlive the model.
  // Null: one rank. Every rank has the same config and options, weights of its own, and runs the
  // same steps (docs/distributed.md).
  Collectives* collectives = nullptr;
  // The ranks that the keys of each sequence are divided over, for a runner with
  // RankOptions::context_ranks; must outlive the model. Null: this rank has all keys of
  // its heads. With `collectives`: groups of a grid (distributed/rank_grid.h).
  Collectives* context = nullptr;
};

class GptModel : public Model {
 public:
  // A model over loaded weights, on their device. Errors: InvalidArgument if they are not of the
  // config's shapes on this rank, max_position is out of range, or both weights and keys are to be
  // divided; those of GptShareOf().
  static absl::StatusOr<std::unique_ptr<GptModel>> Create(const GptConfig& config,
                                                          GptWeights weights,
                                                          const GptModelOptions& options);

  // The model of a Hugging Face folder; load.ranks are those of options.collectives. Errors: those
  // of LoadGptConfig(), LoadGptWeights() and Create().
  static absl::StatusOr<std::unique_ptr<GptModel>> Load(const std::string& folder,
                                                        const LoadWeightsOptions& load,
                                                        const GptModelOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  const GptConfig& config() const { return config_; }
  const GptWeights& weights() const { return weights_; }

 private:
  struct Scratch;

  GptModel(const GptConfig& config, const GptShare& share, GptWeights weights, at::Tensor slopes,
           int max_position, const GptModelOptions& options);

  absl::Status Normalise(const at::Tensor& x, const GptNorm& norm, const at::Tensor& out) const;
  // hidden = the tokens' embeddings.
  absl::Status Embed(const Step& step, Scratch& scratch) const;
  // Both add their output to scratch.hidden.
  absl::Status Attend(const Step& step, int layer, Scratch& scratch) const;
  absl::Status FeedForward(const Step& step, int layer, Scratch& scratch) const;

  const GptConfig config_;  // of all ranks
  const GptShare share_;
  const GptWeights weights_;
  const at::Tensor slopes_;  // [the rank's heads] float32: BLOOM
  ModelSpec spec_;           // points to slopes_
  Collectives* const collectives_;
  Collectives* const context_;
  const ShardedVocabulary vocabulary_;
  SumBuffer hidden_memory_;  // of Scratch::hidden, which the embedding sums
  SumBuffer delta_memory_;   // of Scratch::delta, which sublayers sum
};

}  // namespace reprise

#endif  // REPRISE_MODELS_GPT_GPT_MODEL_H_
