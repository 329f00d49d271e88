#include "reprise/models/deepseek/mla_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/rope.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/merge_attention.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/rotary.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ranks/context_attention.h"
#include "reprise/runner/ranks/sum_norm.h"

namespace reprise {
namespace {

// For the norms of latents, regardless of the config's value for the other norms: transformers'
// default.
constexpr float kLatentEps = 1e-6f;

constexpr int kExpanded = 0;  // in ModelSpec::within

// One latent head, of which V is the first part.
AttentionParams AbsorbedParams(const MlaConfig& config) {
  return {.num_q_heads = config.num_heads,
          .num_kv_heads = 1,
          .head_dim_qk = config.latent_dim(),
          .head_dim_v = config.kv_lora_rank,
          .scale = static_cast<float>(config.attention_scale)};
}

AttentionParams ExpandedParams(const MlaConfig& config) {
  return {.num_q_heads = config.num_heads,
          .num_kv_heads = config.num_heads,
          .head_dim_qk = config.qk_head_dim(),
          .head_dim_v = config.v_head_dim,
          .scale = static_cast<float>(config.attention_scale)};
}

LayerSpec LayerOf(const MlaConfig& config, MlaCache cache) {
  if (cache == MlaCache::kExpanded) return {.params = ExpandedParams(config)};
  return {.params = AbsorbedParams(config), .v_in_k = true};
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct MlaModel::Scratch {
  Scratch(const MlaConfig& config, MlaCache cache, const Ranks& ranks, at::Tensor hidden_rows,
          at::Tensor summed_rows)
      : hidden(std::move(hidden_rows)), summed(std::move(summed_rows)) {
    const int64_t num_tokens = hidden.size(0);
    const at::TensorOptions options = hidden.options();
    // Over ranks, memory of its own: a kernel that sums rows and normalises them needs both.
    normed = ranks.world == 1 ? summed : at::empty_like(hidden);
    const int64_t heads = config.num_heads;
    const int64_t absorbed_heads = cache == MlaCache::kLatent ? heads : 0;
    q_low = at::empty({num_tokens, config.q_lora_rank.value_or(0)}, options);
    q = at::empty({num_tokens, heads, config.qk_head_dim()}, options);
    q_nope = q.narrow(2, 0, config.qk_nope_head_dim);
    q_rope = q.narrow(2, config.qk_nope_head_dim, config.qk_rope_head_dim);
    latent = at::empty({num_tokens, 1, config.latent_dim()}, options);
    compressed = latent.select(1, 0).narrow(1, 0, config.kv_lora_rank);
    k_rope = latent.narrow(2, config.kv_lora_rank, config.qk_rope_head_dim);
    q_latent = at::empty({num_tokens, absorbed_heads, config.latent_dim()}, options);
    values = at::empty({num_tokens, heads, config.v_head_dim}, options);
    gate_up = at::empty({num_tokens, 2 * int64_t{config.intermediate_size}}, options);
    gated = at::empty({num_tokens, config.intermediate_size}, options);
  }

  at::Tensor hidden;      // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;      // [num_tokens, hidden_size], into a sublayer
  at::Tensor summed;      // [num_tokens, hidden_size], out of it: summed over ranks
  at::Tensor q_low;       // [num_tokens, q_lora_rank]
  at::Tensor q;           // [num_tokens, heads, nope + rope]
  at::Tensor q_nope;      // [num_tokens, heads, nope], of q's memory
  at::Tensor q_rope;      // [num_tokens, heads, rope], likewise
  at::Tensor latent;      // [num_tokens, 1, kv_lora_rank + rope], what is cached
  at::Tensor compressed;  // [num_tokens, kv_lora_rank], of latent's memory
  at::Tensor k_rope;      // [num_tokens, 1, rope], likewise
  at::Tensor q_latent;    // [num_tokens, heads, kv_lora_rank + rope], of MlaCache::kLatent
  at::Tensor values;      // [num_tokens, heads, v_head_dim]
  at::Tensor gate_up;     // [num_tokens, 2 * intermediate_size]
  at::Tensor gated;       // [num_tokens, intermediate_size]
};

absl::StatusOr<std::unique_ptr<MlaModel>> MlaModel::Create(const MlaConfig& model_config,
                                                           MlaWeights weights,
                                                           const MlaModelOptions& options) {
  const Ranks ranks = RanksOf(options.collectives);
  REPRISE_RETURN_IF_ERROR(CheckShardings(options.collectives, options.context));
  REPRISE_RETURN_IF_ERROR(CheckMlaWeights(model_config, weights, ranks));
  REPRISE_ASSIGN_OR_RETURN(const MlaConfig config, MlaConfigOfRank(model_config, ranks));
  const int max_position = options.max_position.value_or(config.max_seq_len);
  if (max_position < 1 || max_position > config.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_position must be in [1, ", config.max_seq_len, "]: got ", max_position));
  }
  REPRISE_ASSIGN_OR_RETURN(
      at::Tensor table,
      MakeRotaryTable(RopeFrequencies(config.rope, config.qk_rope_head_dim), max_position,
                      static_cast<float>(RopeAttentionFactor(config.rope)),
                      weights.embedding.device()));
  return std::unique_ptr<MlaModel>(
      new MlaModel(config, std::move(weights), std::move(table), options));
}

absl::StatusOr<std::unique_ptr<MlaModel>> MlaModel::Load(const std::string& folder,
                                                         const LoadWeightsOptions& load,
                                                         const MlaModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const MlaConfig config, LoadMlaConfig(folder));
  LoadWeightsOptions own = load;
  own.ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(MlaWeights weights, LoadMlaWeights(folder, config, own));
  return Create(config, std::move(weights), options);
}

MlaModel::MlaModel(const MlaConfig& config, MlaWeights weights, at::Tensor rotary_table,
                   const MlaModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      rotary_table_(std::move(rotary_table)),
      options_(options),
      vocabulary_(config.vocab_size, options.collectives),
      hidden_memory_(options.collectives, config.hidden_size, weights_.embedding.options()),
      summed_memory_(options.collectives, config.hidden_size, weights_.embedding.options()),
      spec_{.layers = std::vector<LayerSpec>(config.num_layers, LayerOf(config, options.cache)),
            .within = {},
            .vocab_size = config.vocab_size,
            .max_position = static_cast<int>(rotary_table_.size(0)),
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()} {
  if (options.cache == MlaCache::kLatent) spec_.within = {ExpandedParams(config)};
  spec_.sharded_logits = vocabulary_.logits();
}

absl::StatusOr<at::Tensor> MlaModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    REPRISE_ASSIGN_OR_RETURN(at::Tensor hidden, hidden_memory_.Rows(step.num_tokens()));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor summed, summed_memory_.Rows(step.num_tokens()));
    Scratch scratch(config_, options_.cache, RanksOf(options_.collectives), std::move(hidden),
                    std::move(summed));
    REPRISE_RETURN_IF_ERROR(
        vocabulary_.Embed(weights_.embedding, step.token_ids(), scratch.hidden));
    REPRISE_RETURN_IF_ERROR(RmsNorm(scratch.hidden, weights_.layers.front().input_norm,
                                    static_cast<float>(config_.rms_norm_eps), scratch.normed));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const bool is_last = layer + 1 == config_.num_layers;
      REPRISE_RETURN_IF_ERROR(Attention(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(AddAndNormalise(step, weights_.layers[layer].mlp_norm, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(AddAndNormalise(
          step, is_last ? weights_.final_norm : weights_.layers[layer + 1].input_norm, scratch));
    }
    const int64_t num_logits = step.logits_indices().size(0);
    const at::Tensor last =
        at::empty({num_logits, config_.hidden_size}, weights_.embedding.options());
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.normed, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(vocabulary_.Logits(
        weights_.lm_head, step.linears(), last, {step.logits(), step.sharded_logits()},
        [this](const at::Tensor& own) { return CopyFromFirstRank(options_.context, own); }));
    return step.logits();
  });
}

absl::Status MlaModel::Attention(const Step& step, int layer, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(Project(step, layer, scratch));
  if (options_.cache == MlaCache::kExpanded) {
    REPRISE_RETURN_IF_ERROR(AttendExpanded(step, layer, scratch));
  } else {
    REPRISE_RETURN_IF_ERROR(step.Write(layer, scratch.latent));
    REPRISE_RETURN_IF_ERROR(Absorb(step, layer, scratch));
    // A step attends in two parts only if a row may have several queries.
    if (step.max_query_len() > std::max(options_.max_absorbed_query_len, 1)) {
      REPRISE_RETURN_IF_ERROR(AttendUnabsorbed(step, layer, scratch));
    } else {
      REPRISE_RETURN_IF_ERROR(AttendAbsorbed(step, layer, scratch));
    }
  }
  return weights_.layers[layer].o.Apply(step.linears(), scratch.values.flatten(1), scratch.summed);
}

absl::Status MlaModel::Project(const Step& step, int layer, Scratch& scratch) const {
  const MlaLayerWeights& weights = weights_.layers[layer];
  const at::Tensor q = scratch.q.flatten(1);
  if (weights.q_a.has_value()) {
    REPRISE_RETURN_IF_ERROR(weights.q_a->Apply(step.linears(), scratch.normed, scratch.q_low));
    REPRISE_RETURN_IF_ERROR(RmsNorm(scratch.q_low, *weights.q_a_norm, kLatentEps, scratch.q_low));
    REPRISE_RETURN_IF_ERROR(weights.q.Apply(step.linears(), scratch.q_low, q));
  } else {
    REPRISE_RETURN_IF_ERROR(weights.q.Apply(step.linears(), scratch.normed, q));
  }
  REPRISE_RETURN_IF_ERROR(
      weights.kv_a.Apply(step.linears(), scratch.normed, scratch.latent.select(1, 0)));
  REPRISE_RETURN_IF_ERROR(
      RmsNorm(scratch.compressed, weights.kv_a_norm, kLatentEps, scratch.compressed));
  return Rotary(scratch.q_rope, scratch.k_rope, step.positions(), rotary_table_);
}

absl::Status MlaModel::Absorb(const Step& step, int layer, Scratch& scratch) const {
  const at::Tensor rope =
      scratch.q_latent.narrow(2, config_.kv_lora_rank, config_.qk_rope_head_dim);
  rope.copy_(scratch.q_rope);
  return weights_.layers[layer].absorb.Apply(step.linears(), scratch.q_nope,
                                             scratch.q_latent.narrow(2, 0, config_.kv_lora_rank));
}

absl::Status MlaModel::AttendAbsorbed(const Step& step, int layer, Scratch& scratch) const {
  REPRISE_ASSIGN_OR_RETURN(
      const at::Tensor attended,
      AttendOverRanks(options_.context, step, layer, scratch.q_latent, config_.kv_lora_rank));
  return weights_.layers[layer].expand.Apply(step.linears(), attended, scratch.values);
}

absl::StatusOr<std::pair<at::Tensor, at::Tensor>> MlaModel::Expand(const Step& step, int layer,
                                                                   const Scratch& scratch) const {
  const int64_t num_tokens = scratch.q.size(0);
  const int64_t heads = config_.num_heads;
  const int64_t nope = config_.qk_nope_head_dim;
  // Head by head; the rotated key is the same for all.
  const at::Tensor expanded =
      at::empty({num_tokens, heads, nope + config_.v_head_dim}, scratch.q.options());
  REPRISE_RETURN_IF_ERROR(
      weights_.layers[layer].kv_b.Apply(step.linears(), scratch.compressed, expanded.flatten(1)));
  at::Tensor k = at::empty_like(scratch.q);
  k.narrow(2, 0, nope).copy_(expanded.narrow(2, 0, nope));
  k.narrow(2, nope, config_.qk_rope_head_dim).copy_(scratch.k_rope.expand({-1, heads, -1}));
  return std::pair(std::move(k), expanded.narrow(2, nope, config_.v_head_dim));
}

absl::Status MlaModel::AttendUnabsorbed(const Step& step, int layer, Scratch& scratch) const {
  REPRISE_ASSIGN_OR_RETURN(const auto expanded, Expand(step, layer, scratch));
  REPRISE_ASSIGN_OR_RETURN(
      const AttentionPart within,
      step.AttendWithin(kExpanded, scratch.q, expanded.first, expanded.second));
  REPRISE_ASSIGN_OR_RETURN(
      const AttentionPart latents,
      AttendBeforeOverRanks(options_.context, step, layer, scratch.q_latent, config_.kv_lora_rank));
  const at::Tensor before = at::empty_like(scratch.values);
  REPRISE_RETURN_IF_ERROR(weights_.layers[layer].expand.Apply(step.linears(), latents.out, before));
  return MergeAttention({within.out, before}, {within.lse, latents.lse}, scratch.values);
}

absl::Status MlaModel::AttendExpanded(const Step& step, int layer, Scratch& scratch) const {
  REPRISE_ASSIGN_OR_RETURN(const auto expanded, Expand(step, layer, scratch));
  REPRISE_RETURN_IF_ERROR(step.Write(layer, expanded.first, expanded.second));
  REPRISE_ASSIGN_OR_RETURN(scratch.values, AttendOverRanks(options_.context, step, layer, scratch.q,
                                                           config_.v_head_dim));
  return absl::OkStatus();
}

absl::Status MlaModel::FeedForward(const Step& step, int layer, Scratch& scratch) const {
  const MlaLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(weights.gate_up.ApplyGated(
      step.linears(), Activation::kSilu, scratch.normed, scratch.gate_up, scratch.gated));
  return weights.down.Apply(step.linears(), scratch.gated, scratch.summed);
}

absl::Status MlaModel::AddAndNormalise(const Step& step, const at::Tensor& norm,
                                       Scratch& scratch) const {
  return SumAddRmsNorm(options_.collectives, step.linears(), scratch.summed, scratch.hidden, norm,
                       static_cast<float>(config_.rms_norm_eps), scratch.normed);
}

}  // namespace reprise
