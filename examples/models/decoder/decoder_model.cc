#include "reprise/models/decoder/decoder_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/rope.h"
#include "reprise/models/moe/experts.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/head_norm.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ranks/context_attention.h"
#include "reprise/runner/ranks/sum_norm.h"

namespace reprise {
namespace {

// A plain norm of heads comes after the rotation, which multiplies lengths by the attention factor
// a. A norm before a rotation that changes no length is the same with eps / a^2:
//   a R x / sqrt(mean((a x)^2) + eps) = R (x / sqrt(mean(x^2) + eps / a^2))
bool NormUndoesAttentionFactor(const DecoderConfig& config) {
  return config.qk_norm == QkNorm::kPlain;
}

// The value rounded to the dtype.
double RoundedTo(DType dtype, double value) {
  return at::scalar_tensor(value, at::TensorOptions().dtype(ToScalarType(dtype))).item<double>();
}

float HeadNormEps(const DecoderConfig& config) {
  const double factor = NormUndoesAttentionFactor(config) ? RopeAttentionFactor(config.rope) : 1;
  return static_cast<float>(config.rms_norm_eps / (factor * factor));
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct DecoderModel::Scratch {
  Scratch(const DecoderConfig& config, const Ranks& ranks, at::Tensor hidden_rows,
          at::Tensor summed_rows)
      : hidden(std::move(hidden_rows)), summed(std::move(summed_rows)) {
    const int64_t num_tokens = hidden.size(0);
    const at::TensorOptions options = hidden.options();
    // Over ranks, memory of its own: a kernel that sums rows and normalises them needs both.
    normed = ranks.world == 1 ? summed : at::empty_like(hidden);
    const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
    const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
    qkv = at::empty({num_tokens, q_size + 2 * kv_size}, options);
    if (!config.experts.has_value()) {
      gate_up = at::empty({num_tokens, 2 * int64_t{config.intermediate_size}}, options);
      gated = at::empty({num_tokens, config.intermediate_size}, options);
    }
    const auto heads = [&](int64_t begin, int64_t num_heads) {
      return qkv.narrow(1, begin, num_heads * config.head_dim)
          .unflatten(1, {num_heads, config.head_dim});
    };
    q = heads(0, config.num_q_heads);
    k = heads(q_size, config.num_kv_heads);
    v = heads(q_size + kv_size, config.num_kv_heads);
  }

  at::Tensor hidden;   // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;   // [num_tokens, hidden_size], into a sublayer
  at::Tensor summed;   // [num_tokens, hidden_size], out of it: summed over ranks
  at::Tensor qkv;      // [num_tokens, q_size + 2 * kv_size]
  at::Tensor q;        // [num_tokens, num_q_heads, head_dim], of qkv's memory
  at::Tensor k;        // [num_tokens, num_kv_heads, head_dim], likewise
  at::Tensor v;        // [num_tokens, num_kv_heads, head_dim], likewise
  at::Tensor gate_up;  // [num_tokens, 2 * intermediate_size], unless there are experts
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
  const auto make_table = [&](const RopeConfig& rope) {
    const double attention_factor =
        NormUndoesAttentionFactor(config) ? 1 : RopeAttentionFactor(rope);
    return MakeRotaryTable(RopeFrequencies(rope, config.head_dim), max_position,
                           static_cast<float>(attention_factor), weights.embedding.device());
  };
  Tables tables;
  REPRISE_ASSIGN_OR_RETURN(tables.rotary, make_table(config.rope));
  tables.window_rotary = tables.rotary;
  if (config.window_rope.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(tables.window_rotary, make_table(*config.window_rope));
  }
  REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
    for (const DecoderLayerWeights& layer : weights.layers) {
      if (layer.sinks.has_value()) tables.sinks.push_back(layer.sinks->to(at::kFloat));
    }
    return absl::OkStatus();
  }));
  return std::unique_ptr<DecoderModel>(
      new DecoderModel(config, std::move(weights), std::move(tables), max_position, options));
}

std::vector<LayerSpec> DecoderModel::MakeLayerSpecs(const DecoderConfig& config,
                                                    const DecoderWeights& weights,
                                                    const Tables& tables) {
  std::vector<LayerSpec> layers;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const LayerAttention attention = config.AttentionOf(layer);
    LayerSpec spec = {.params = {.num_q_heads = config.num_q_heads,
                                 .num_kv_heads = config.num_kv_heads,
                                 .head_dim_qk = config.head_dim,
                                 .head_dim_v = config.head_dim},
                      .chunk_size = attention.chunk,
                      .k_scale = weights.layers[layer].kv_scales.k,
                      .v_scale = weights.layers[layer].kv_scales.v};
    if (config.attention_scale.has_value()) {
      spec.params.scale = static_cast<float>(*config.attention_scale);
    }
    if (config.attention_softcap.has_value()) {
      spec.params.softcap = static_cast<float>(*config.attention_softcap);
    }
    spec.params.window_left = WindowLeft(attention.window, WindowCount::kTokens);
    if (config.sinks) spec.params.sinks = tables.sinks[layer].const_data_ptr<float>();
    layers.push_back(spec);
  }
  return layers;
}

absl::StatusOr<std::unique_ptr<DecoderModel>> DecoderModel::Load(
    const std::string& folder, const LoadWeightsOptions& load, const DecoderModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LoadDecoderConfig(folder));
  LoadWeightsOptions own = load;
  own.ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadDecoderWeights(folder, config, own));
  return Create(config, std::move(weights), options);
}

DecoderModel::DecoderModel(const DecoderConfig& config, DecoderWeights weights, Tables tables,
                           int max_position, const DecoderModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      tables_(std::move(tables)),
      spec_{.layers = MakeLayerSpecs(config, weights_, tables_),
            .vocab_size = config.vocab_size,
            .max_position = max_position,
            .dtype = weights_.dtype,
            .input_embedding_dim = options.takes_embeddings ? config.hidden_size : 0,
            .hidden_dim = config.hidden_size,
            .device = weights_.embedding.device()},
      embedding_scale_(RoundedTo(weights_.dtype, std::sqrt(double{1} * config.hidden_size))),
      collectives_(options.collectives),
      context_(options.context),
      vocabulary_(config.vocab_size, options.collectives),
      hidden_memory_(options.collectives, config.hidden_size, weights_.embedding.options()),
      summed_memory_(options.collectives, config.hidden_size, weights_.embedding.options()) {
  spec_.sharded_logits = vocabulary_.logits();
}

absl::StatusOr<at::Tensor> DecoderModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    REPRISE_ASSIGN_OR_RETURN(at::Tensor hidden, hidden_memory_.Rows(step.num_tokens()));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor summed, summed_memory_.Rows(step.num_tokens()));
    Scratch scratch(config_, RanksOf(collectives_), std::move(hidden), std::move(summed));
    REPRISE_RETURN_IF_ERROR(Embed(step, scratch));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const DecoderLayerWeights& weights = weights_.layers[layer];
      const bool is_last = layer + 1 == config_.num_layers;
      REPRISE_RETURN_IF_ERROR(Attention(step, layer, scratch));
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
      if (config_.logit_softcap.has_value()) {
        REPRISE_RETURN_IF_ERROR(Softcap(own, static_cast<float>(*config_.logit_softcap)));
      }
      return CopyFromFirstRank(context_, own);
    };
    REPRISE_RETURN_IF_ERROR(vocabulary_.Logits(weights_.lm_head, step.linears(), last,
                                               {step.logits(), step.sharded_logits()}, finish));
    return step.logits();
  });
}

absl::Status DecoderModel::Embed(const Step& step, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(vocabulary_.Embed(weights_.embedding, step.token_ids(), scratch.hidden));
  if (config_.scale_embedding) scratch.hidden.mul_(embedding_scale_);
  REPRISE_ASSIGN_OR_RETURN(scratch.hidden, step.Embed(scratch.hidden));
  return RmsNorm(scratch.hidden, weights_.layers.front().input_norm, eps(), scratch.normed,
                 config_.norm_weight);
}

absl::Status DecoderModel::Attention(const Step& step, int layer, Scratch& scratch) const {
  const DecoderLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(weights.qkv.Apply(step.linears(), scratch.normed, scratch.qkv));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, Attend(step, layer, scratch));
  return weights.o.Apply(step.linears(), attended.flatten(1), scratch.summed);
}

absl::StatusOr<at::Tensor> DecoderModel::Attend(const Step& step, int layer,
                                                Scratch& scratch) const {
  const DecoderLayerWeights& weights = weights_.layers[layer];
  const bool rotates = config_.AttentionOf(layer).rotates;
  std::optional<HeadNormOptions> norm;
  if (config_.qk_norm == QkNorm::kWeighted || (config_.qk_norm == QkNorm::kPlain && rotates)) {
    norm = {.q_weight = weights.q_norm,
            .k_weight = weights.k_norm,
            .eps = HeadNormEps(config_),
            .form = config_.norm_weight};
  }
  if (rotates) {
    const at::Tensor& table =
        config_.AttentionOf(layer).window.has_value() ? tables_.window_rotary : tables_.rotary;
    REPRISE_RETURN_IF_ERROR(
        step.Write(layer, scratch.k, scratch.v, {.q = scratch.q, .table = table, .norm = norm}));
    return AttendOverRanks(context_, step, layer, scratch.q, config_.head_dim);
  }
  if (norm.has_value()) REPRISE_RETURN_IF_ERROR(NormaliseHeads(scratch.q, scratch.k, *norm));
  if (config_.temperature.has_value()) {
    REPRISE_RETURN_IF_ERROR(TemperQueries(scratch.q, step.positions(), *config_.temperature));
  }
  REPRISE_RETURN_IF_ERROR(step.Write(layer, scratch.k, scratch.v));
  return AttendOverRanks(context_, step, layer, scratch.q, config_.head_dim);
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
  if (!output_norm.has_value()) {
    return SumAddRmsNorm(collectives_, step.linears(), scratch.summed, scratch.hidden, norm, eps(),
                         scratch.normed, config_.norm_weight);
  }
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.summed));
  REPRISE_RETURN_IF_ERROR(
      RmsNorm(scratch.summed, *output_norm, eps(), scratch.normed, config_.norm_weight));
  return AddRmsNorm(scratch.normed, scratch.hidden, norm, eps(), scratch.normed,
                    config_.norm_weight);
}

}  // namespace reprise
