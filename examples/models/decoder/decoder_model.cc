#include "reprise/models/decoder/decoder_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/models/moe/experts.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ranks/context_attention.h"
#include "reprise/runner/ranks/sum_norm.h"

namespace reprise {
namespace {

// The value rounded to the dtype.
double RoundedTo(DType dtype, double value) {
  return at::scalar_tensor(value, at::TensorOptions().dtype(ToScalarType(dtype))).item<double>();
}

double EmbeddingScale(const DecoderConfig& config, DType dtype) {
  return config.rounds_embedding_scale ? RoundedTo(dtype, config.embedding_scale)
                                       : config.embedding_scale;
}

}  // namespace

// The activations of one step outside of attention. Layers come one after the other and use the
// same memory.
struct DecoderModel::Scratch {
  Scratch(const DecoderConfig& config, const Ranks& ranks, at::Tensor hidden_rows,
          at::Tensor summed_rows)
      : hidden(std::move(hidden_rows)), summed(std::move(summed_rows)) {
    const int64_t num_tokens = hidden.size(0);
    const at::TensorOptions options = hidden.options();
    // Over ranks, memory of its own: a kernel that sums rows and normalises them needs both.
    normed = ranks.world == 1 ? summed : at::empty_like(hidden);
    if (config.HasDenseLayer()) {
      gate_up = at::empty({num_tokens, 2 * int64_t{config.intermediate_size}}, options);
      gated = at::empty({num_tokens, config.intermediate_size}, options);
    }
  }

  at::Tensor hidden;   // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;   // [num_tokens, hidden_size], into a sublayer
  at::Tensor summed;   // [num_tokens, hidden_size], out of it: summed over ranks
  at::Tensor gate_up;  // [num_tokens, 2 * intermediate_size], of layers without experts
  at::Tensor gated;    // [num_tokens, intermediate_size], likewise
};

absl::StatusOr<std::unique_ptr<DecoderModel>> DecoderModel::Create(
    const DecoderConfig& model_config, DecoderWeights weights, const DecoderModelOptions& options) {
  const Ranks ranks = RanksOf(options.collectives);
  REPRISE_RETURN_IF_ERROR(CheckShardings(options.collectives, options.context));
  REPRISE_RETURN_IF_ERROR(CheckDecoderWeights(model_config, weights, ranks));
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, DecoderConfigOfRank(model_config, ranks));
  const int max_position = options.max_position.value_or(config.max_seq_len);
  if (max_position < 1 || max_position > config.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_position must be in [1, ", config.max_seq_len, "]: got ", max_position));
  }
  std::unique_ptr<DecoderModel> model(new DecoderModel(config, std::move(weights), options));
  const AttentionOptions attention = {.max_position = max_position,
                                      .context = options.context,
                                      .max_absorbed_query_len = options.max_absorbed_query_len,
                                      .mla_cache = options.mla_cache};
  const auto make = config.latent.has_value() ? MakeLatentAttention : MakeGroupedAttention;
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<DecoderAttention> made,
                           make(model->config_, model->weights_, attention));
  model->SetAttention(std::move(made), max_position);
  return model;
}

absl::StatusOr<std::unique_ptr<DecoderModel>> DecoderModel::Load(
    const std::string& folder, const LoadWeightsOptions& load, const DecoderModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LoadDecoderConfig(folder));
  LoadWeightsOptions own = load;
  own.ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadDecoderWeights(folder, config, own));
  return Create(config, std::move(weights), options);
}

DecoderModel::DecoderModel(const DecoderConfig& config, DecoderWeights weights,
                           const DecoderModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      options_(options),
      embedding_scale_(EmbeddingScale(config, weights_.dtype)),
      vocabulary_(config.vocab_size, options.collectives),
      hidden_memory_(options.collectives, config.hidden_size, weights_.embedding.options()),
      summed_memory_(options.collectives, config.hidden_size, weights_.embedding.options()) {}

void DecoderModel::SetAttention(std::unique_ptr<DecoderAttention> attention, int max_position) {
  attention_ = std::move(attention);
  spec_ = {.layers = attention_->layers(),
           .within = attention_->within(),
           .vocab_size = config_.vocab_size,
           .max_position = max_position,
           .dtype = weights_.dtype,
           .input_embedding_dim = options_.takes_embeddings ? config_.hidden_size : 0,
           .hidden_dim = config_.hidden_size,
           .device = weights_.embedding.device()};
  spec_.sharded_logits = vocabulary_.logits();
}

absl::StatusOr<at::Tensor> DecoderModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    REPRISE_ASSIGN_OR_RETURN(at::Tensor hidden, hidden_memory_.Rows(step.num_tokens()));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor summed, summed_memory_.Rows(step.num_tokens()));
    Scratch scratch(config_, RanksOf(options_.collectives), std::move(hidden), std::move(summed));
    const auto attention = attention_->Begin(step, scratch.hidden);
    REPRISE_RETURN_IF_ERROR(Embed(step, scratch));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const DecoderLayerWeights& weights = weights_.layers[layer];
      const bool is_last = layer + 1 == config_.num_layers;
      REPRISE_RETURN_IF_ERROR(attention->Apply(layer, scratch.normed, scratch.summed));
      REPRISE_RETURN_IF_ERROR(
          AddAndNormalise(step, weights.attention_output_norm, weights.mlp_norm, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(AddAndNormalise(
          step, weights.mlp_output_norm,
          is_last ? weights_.final_norm : weights_.layers[layer + 1].input_norm, scratch));
    }
    REPRISE_RETURN_IF_ERROR(step.KeepHidden(scratch.normed));
    const int64_t num_logits = step.logits_indices().size(0);
    const at::Tensor last =
        at::empty({num_logits, config_.hidden_size}, weights_.embedding.options());
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.normed, step.logits_indices(), last));
    const auto finish = [this](const at::Tensor& own) {
      if (config_.logit_divisor != 1) own.div_(config_.logit_divisor);
      if (config_.logit_softcap.has_value()) {
        REPRISE_RETURN_IF_ERROR(Softcap(own, static_cast<float>(*config_.logit_softcap)));
      }
      return CopyFromFirstRank(options_.context, own);
    };
    REPRISE_RETURN_IF_ERROR(vocabulary_.Logits(weights_.lm_head, step.linears(), last,
                                               {step.logits(), step.sharded_logits()}, finish));
    return step.logits();
  });
}

absl::Status DecoderModel::Embed(const Step& step, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(vocabulary_.Embed(weights_.embedding, step.token_ids(), scratch.hidden));
  if (embedding_scale_ != 1) scratch.hidden.mul_(embedding_scale_);
  REPRISE_ASSIGN_OR_RETURN(scratch.hidden, step.Embed(scratch.hidden));
  return RmsNorm(scratch.hidden, weights_.layers.front().input_norm, eps(), scratch.normed,
                 config_.norm_weight);
}

absl::Status DecoderModel::FeedForward(const Step& step, int layer, Scratch& scratch) const {
  const DecoderLayerWeights& weights = weights_.layers[layer];
  if (weights.experts.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(const Routing routing,
                             ApplyExperts(*config_.experts, *weights.experts, step.linears(),
                                          scratch.normed, scratch.summed));
    step.Watch("layer", layer, "experts", routing.experts);
    return absl::OkStatus();
  }
  REPRISE_RETURN_IF_ERROR(weights.gate_up->ApplyGated(
      step.linears(), config_.activation, scratch.normed, scratch.gate_up, scratch.gated));
  return weights.down->Apply(step.linears(), scratch.gated, scratch.summed);
}

absl::Status DecoderModel::AddAndNormalise(const Step& step,
                                           const std::optional<at::Tensor>& output_norm,
                                           const at::Tensor& norm, Scratch& scratch) const {
  const double scale = config_.residual_scale;
  if (!output_norm.has_value()) {
    if (scale != 1) scratch.summed.mul_(scale);
    return SumAddRmsNorm(options_.collectives, step.linears(), scratch.summed, scratch.hidden, norm,
                         eps(), scratch.normed, config_.norm_weight);
  }
  REPRISE_RETURN_IF_ERROR(SumOverRanks(options_.collectives, step.linears(), scratch.summed));
  REPRISE_RETURN_IF_ERROR(
      RmsNorm(scratch.summed, *output_norm, eps(), scratch.normed, config_.norm_weight));
  if (scale != 1) scratch.normed.mul_(scale);
  return AddRmsNorm(scratch.normed, scratch.hidden, norm, eps(), scratch.normed,
                    config_.norm_weight);
}

}  // namespace reprise
