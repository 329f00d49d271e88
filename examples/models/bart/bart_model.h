// Unstable: any version may change this header (docs/embedding.md).
//
// A BART encoder-decoder as the runner sees it.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<BartModel> model, BartModel::Load(folder, {}));
//   REPRISE_ASSIGN_OR_RETURN(auto engine, CreateEngine(model.get(), {}));
//   engine->Add({.prompt = {model->config().decoder_start_token_id}, .encoder_tokens = input});
//
// The encoder runs once per sequence, on concatenated inputs of any lengths; each input attends
// within itself. The keys and values of every cross attention are made from its output and kept in
// their own blocks. The decoder's layers attend to their own keys, causally, and to the cross keys.
//
// Layers of the spec: the encoder's, then for each decoder layer its self attention and its cross
// attention.
//
// Thread safety: as Model.

#ifndef REPRISE_MODELS_BART_BART_MODEL_H_
#define REPRISE_MODELS_BART_BART_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"
#include "reprise/models/bart/bart_config.h"
#include "reprise/models/bart/bart_weights.h"
#include "reprise/runner/encoder_step.h"
#include "reprise/runner/model.h"
#include "reprise/runner/ranks/over_ranks.h"
#include "reprise/runner/step.h"

namespace reprise {

struct BartModelOptions {
  // The ranks that the model is divided over, this process among them; must outlive the model.
  // Null: one rank. Each has some heads, inner elements and words, and its heads' part of both
  // caches; all run the same steps (docs/distributed.md).
  Collectives* collectives = nullptr;
};

class BartModel : public Model {
 public:
  // A model over the rank's loaded weights, on their device. Errors: those of BartShareOf() and
  // CheckBartWeights().
  static absl::StatusOr<std::unique_ptr<BartModel>> Create(const BartConfig& config,
                                                           BartWeights weights,
                                                           const BartModelOptions& options = {});

  // The model of a Hugging Face folder; load.ranks is ignored. Errors: those of LoadBartConfig(),
  // LoadBartWeights() and Create().
  static absl::StatusOr<std::unique_ptr<BartModel>> Load(const std::string& folder,
                                                         const LoadWeightsOptions& load,
                                                         const BartModelOptions& options = {});

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;
  absl::Status Encode(const EncoderStep& step) override;

  const BartConfig& config() const { return config_; }
  const BartWeights& weights() const { return weights_; }

 private:
  struct Scratch;

  BartModel(const BartConfig& config, const BartShare& share, BartWeights weights,
            const BartModelOptions& options);

  int OwnLayer(int layer) const { return config_.encoder.num_layers + 2 * layer; }
  int CrossLayer(int layer) const { return OwnLayer(layer) + 1; }

  // Of a step of `num_tokens` tokens through a stack.
  absl::StatusOr<Scratch> NewScratch(const BartStackConfig& stack, const BartStackShare& share,
                                     int64_t num_tokens);

  // The sublayers; those with the template parameter AnyStep serve both stacks. Each replaces
  // scratch.hidden by the norm of the sum of scratch.hidden and its output.
  template <typename AnyStep>
  absl::Status Embed(const AnyStep& step, const BartInput& input, Scratch& scratch) const;
  template <typename AnyStep>
  absl::Status AttendToSelf(const AnyStep& step, int layer, const BartSelfAttention& weights,
                            Scratch& scratch) const;
  absl::Status AttendToEncoder(const Step& step, int layer, const BartCrossAttention& weights,
                               Scratch& scratch) const;
  template <typename AnyStep>
  absl::Status FeedForward(const AnyStep& step, const BartFeedForward& weights,
                           Scratch& scratch) const;

  const BartConfig config_;
  const BartShare share_;
  const BartWeights weights_;
  ModelSpec spec_;
  Collectives* const collectives_;
  const ShardedVocabulary vocabulary_;
  SumBuffer hidden_memory_, delta_memory_;  // of both stacks, whose steps follow each other
};

}  // namespace reprise

#endif  // REPRISE_MODELS_BART_BART_MODEL_H_
