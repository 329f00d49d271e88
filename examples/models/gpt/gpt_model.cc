#include "reprise/models/gpt/gpt_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/alibi_slopes.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ranks/context_attention.h"

namespace reprise {
namespace {

std::vector<LayerSpec> MakeLayerSpecs(const GptConfig& config, const GptShare& share,
                                      const at::Tensor& slopes) {
  LayerSpec layer = {.params = {.num_q_heads = static_cast<int>(share.heads.size),
                                .num_kv_heads = static_cast<int>(share.heads.size),
                                .head_dim_qk = config.head_dim(),
                                .head_dim_v = config.head_dim()}};
  if (slopes.defined()) layer.params.alibi_slopes = slopes.const_data_ptr<float>();
  return std::vector<LayerSpec>(config.num_layers, layer);
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct GptModel::Scratch {
  Scratch(const GptConfig& config, const GptShare& share, at::Tensor hidden_rows,
          at::Tensor delta_rows)
      : hidden(std::move(hidden_rows)),
        normed(at::empty_like(hidden)),
        delta(std::move(delta_rows)),
        fused(at::empty({hidden.size(0), 3 * share.heads.size * config.head_dim()},
                        hidden.options())),
        inner(at::empty({hidden.size(0), share.inner.size}, hidden.options())) {
    const bool by_head = config.family == GptFamily::kBloom;
    const int64_t heads = share.heads.size;
    const std::array<int64_t, 3> parts = {by_head ? heads : 3, by_head ? 3 : heads,
                                          config.head_dim()};
    const at::Tensor split = fused.unflatten(1, parts);
    for (int i = 0; i < 3; ++i) qkv[i] = split.select(by_head ? 2 : 1, i);
  }

  at::Tensor hidden;              // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;              // [num_tokens, hidden_size], into a sublayer
  at::Tensor delta;               // [num_tokens, hidden_size], what a sublayer adds
  at::Tensor fused;               // [num_tokens, 3 * heads * head_dim] of the rank's heads
  std::array<at::Tensor, 3> qkv;  // q, k, v [num_tokens, heads, head_dim], of fused's memory
  at::Tensor inner;               // [num_tokens, the rank's inner elements]
};

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Create(const GptConfig& config,
                                                           GptWeights weights,
                                                           const GptModelOptions& options) {
  const Ranks ranks = RanksOf(options.collectives);
  REPRISE_RETURN_IF_ERROR(CheckShardings(options.collectives, options.context));
  REPRISE_ASSIGN_OR_RETURN(const GptShare share, GptShareOf(config, ranks));
  REPRISE_RETURN_IF_ERROR(CheckGptWeights(config, weights, ranks));
  const int max_position = options.max_position.value_or(config.max_seq_len);
  if (max_position < 1 || max_position > config.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_position must be in [1, ", config.max_seq_len, "]: got ", max_position));
  }
  at::Tensor slopes;
  if (config.family == GptFamily::kBloom) {
    REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
      slopes = at::tensor(AlibiSlopes(config.num_heads))
                   .narrow(0, share.heads.begin, share.heads.size)
                   .clone()
                   .to(weights.embedding.device());
      return absl::OkStatus();
    }));
  }
  return std::unique_ptr<GptModel>(
      new GptModel(config, share, std::move(weights), std::move(slopes), max_position, options));
}

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Load(const std::string& folder,
                                                         const LoadWeightsOptions& load,
                                                         const GptModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const GptConfig config, LoadGptConfig(folder));
  LoadWeightsOptions own = load;
  own.ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(GptWeights weights, LoadGptWeights(folder, config, own));
  return Create(config, std::move(weights), options);
}

GptModel::GptModel(const GptConfig& config, const GptShare& share, GptWeights weights,
                   at::Tensor slopes, int max_position, const GptModelOptions& options)
    : config_(config),
      share_(share),
      weights_(std::move(weights)),
      slopes_(std::move(slopes)),
      spec_{.layers = MakeLayerSpecs(config, share, slopes_),
            .vocab_size = config.vocab_size,
            .max_position = max_position,
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()},
      collectives_(options.collectives),
      context_(options.context),
      vocabulary_(config.vocab_size, options.collectives),
      hidden_memory_(options.collectives, config.hidden_size, weights_.embedding.options()),
      delta_memory_(options.collectives, config.hidden_size, weights_.embedding.options()) {
  spec_.sharded_logits = vocabulary_.logits();
}

absl::StatusOr<at::Tensor> GptModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const at::TensorOptions options = weights_.embedding.options();
    REPRISE_ASSIGN_OR_RETURN(at::Tensor hidden, hidden_memory_.Rows(step.num_tokens()));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor delta, delta_memory_.Rows(step.num_tokens()));
    Scratch scratch(config_, share_, std::move(hidden), std::move(delta));
    REPRISE_RETURN_IF_ERROR(Embed(step, scratch));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      REPRISE_RETURN_IF_ERROR(Attend(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, layer, scratch));
    }
    const at::Tensor last =
        at::empty({step.logits_indices().size(0), config_.hidden_size}, options);
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.hidden, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(Normalise(last, weights_.final_norm, last));
    REPRISE_RETURN_IF_ERROR(vocabulary_.Logits(
        weights_.lm_head, step.linears(), last, {step.logits(), step.sharded_logits()},
        [this](const at::Tensor& own) { return CopyFromFirstRank(context_, own); }));
    return step.logits();
  });
}

absl::Status GptModel::Normalise(const at::Tensor& x, const GptNorm& norm,
                                 const at::Tensor& out) const {
  return LayerNorm(x, norm.weight, norm.bias, static_cast<float>(config_.layer_norm_eps), out);
}

absl::Status GptModel::Embed(const Step& step, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(vocabulary_.Embed(weights_.embedding, step.token_ids(), scratch.hidden));
  if (weights_.positions.has_value()) {
    REPRISE_RETURN_IF_ERROR(GatherRows(*weights_.positions, step.positions(), scratch.delta));
    scratch.hidden.add_(scratch.delta);
  }
  if (!weights_.embedding_norm.has_value()) return absl::OkStatus();
  return Normalise(scratch.hidden, *weights_.embedding_norm, scratch.hidden);
}

absl::Status GptModel::Attend(const Step& step, int layer, Scratch& scratch) const {
  const GptLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(Normalise(scratch.hidden, weights.attention_norm, scratch.normed));
  REPRISE_RETURN_IF_ERROR(weights.qkv.Apply(step.linears(), scratch.normed, scratch.fused));
  const auto& [q, k, v] = scratch.qkv;
  REPRISE_RETURN_IF_ERROR(step.Write(layer, k, v));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                           AttendOverRanks(context_, step, layer, q, config_.head_dim()));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.delta));
  scratch.hidden.add_(scratch.delta);
  return absl::OkStatus();
}

absl::Status GptModel::FeedForward(const Step& step, int layer, Scratch& scratch) const {
  const GptLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(Normalise(scratch.hidden, weights.mlp_norm, scratch.normed));
  REPRISE_RETURN_IF_ERROR(weights.up.Apply(step.linears(), scratch.normed, scratch.inner));
  REPRISE_RETURN_IF_ERROR(Gelu(scratch.inner, config_.gelu));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(step.linears(), scratch.inner, scratch.delta));
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.delta));
  scratch.hidden.add_(scratch.delta);
  return absl::OkStatus();
}

}  // namespace reprise
