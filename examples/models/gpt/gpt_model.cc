#include "examples/models/gpt/gpt_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/alibi_slopes.h"
#include "attention/layer_spec.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "runner/ops/elementwise.h"
#include "runner/ops/gather_rows.h"
#include "runner/ops/norm.h"

namespace reprise {
namespace {

std::vector<LayerSpec> MakeLayerSpecs(const GptConfig& config, const at::Tensor& slopes) {
  LayerSpec layer = {.params = {.num_q_heads = config.num_heads,
                                .num_kv_heads = config.num_heads,
                                .head_dim_qk = config.head_dim(),
                                .head_dim_v = config.head_dim()}};
  if (slopes.defined()) layer.params.alibi_slopes = slopes.const_data_ptr<float>();
  return std::vector<LayerSpec>(config.num_layers, layer);
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct GptModel::Scratch {
  Scratch(const GptConfig& config, int64_t num_tokens, const at::TensorOptions& options)
      : hidden(at::empty({num_tokens, config.hidden_size}, options)),
        normed(at::empty({num_tokens, config.hidden_size}, options)),
        delta(at::empty({num_tokens, config.hidden_size}, options)),
        fused(at::empty({num_tokens, 3 * int64_t{config.hidden_size}}, options)),
        inner(at::empty({num_tokens, config.inner_size}, options)) {
    const bool by_head = config.family == GptFamily::kBloom;
    const std::array<int64_t, 3> parts = {by_head ? config.num_heads : 3,
                                          by_head ? 3 : config.num_heads, config.head_dim()};
    const at::Tensor split = fused.unflatten(1, parts);
    for (int i = 0; i < 3; ++i) qkv[i] = split.select(by_head ? 2 : 1, i);
  }

  at::Tensor hidden;              // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;              // [num_tokens, hidden_size], into a sublayer
  at::Tensor delta;               // [num_tokens, hidden_size], what a sublayer adds
  at::Tensor fused;               // [num_tokens, 3 * hidden_size]
  std::array<at::Tensor, 3> qkv;  // q, k, v [num_tokens, num_heads, head_dim], of fused's memory
  at::Tensor inner;               // [num_tokens, inner_size]
};

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Create(const GptConfig& config,
                                                           GptWeights weights,
                                                           const GptModelOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckGptWeights(config, weights));
  const int max_position = options.max_position.value_or(config.max_seq_len);
  if (max_position < 1 || max_position > config.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_position must be in [1, ", config.max_seq_len, "]: got ", max_position));
  }
  at::Tensor slopes;
  if (config.family == GptFamily::kBloom) {
    REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
      slopes = at::tensor(AlibiSlopes(config.num_heads)).to(weights.embedding.device());
      return absl::OkStatus();
    }));
  }
  return std::unique_ptr<GptModel>(
      new GptModel(config, std::move(weights), std::move(slopes), max_position));
}

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Load(const std::string& folder,
                                                         const LoadWeightsOptions& load,
                                                         const GptModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const GptConfig config, LoadGptConfig(folder));
  REPRISE_ASSIGN_OR_RETURN(GptWeights weights, LoadGptWeights(folder, config, load));
  return Create(config, std::move(weights), options);
}

GptModel::GptModel(const GptConfig& config, GptWeights weights, at::Tensor slopes, int max_position)
    : config_(config),
      weights_(std::move(weights)),
      slopes_(std::move(slopes)),
      spec_{.layers = MakeLayerSpecs(config, slopes_),
            .vocab_size = config.vocab_size,
            .max_position = max_position,
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()} {}

absl::StatusOr<at::Tensor> GptModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const at::TensorOptions options = weights_.embedding.options();
    Scratch scratch(config_, step.num_tokens(), options);
    REPRISE_RETURN_IF_ERROR(Embed(step, scratch));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      REPRISE_RETURN_IF_ERROR(Attend(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, layer, scratch));
    }
    const at::Tensor last =
        at::empty({step.logits_indices().size(0), config_.hidden_size}, options);
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.hidden, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(Normalise(last, weights_.final_norm, last));
    REPRISE_RETURN_IF_ERROR(weights_.lm_head.Apply(step.linears(), last, step.logits()));
    return step.logits();
  });
}

absl::Status GptModel::Normalise(const at::Tensor& x, const GptNorm& norm,
                                 const at::Tensor& out) const {
  return LayerNorm(x, norm.weight, norm.bias, static_cast<float>(config_.layer_norm_eps), out);
}

absl::Status GptModel::Embed(const Step& step, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(GatherRows(weights_.embedding, step.token_ids(), scratch.hidden));
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
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, step.Attend(layer, q, k, v));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  scratch.hidden.add_(scratch.delta);
  return absl::OkStatus();
}

absl::Status GptModel::FeedForward(const Step& step, int layer, Scratch& scratch) const {
  const GptLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(Normalise(scratch.hidden, weights.mlp_norm, scratch.normed));
  REPRISE_RETURN_IF_ERROR(weights.up.Apply(step.linears(), scratch.normed, scratch.inner));
  REPRISE_RETURN_IF_ERROR(Gelu(scratch.inner, config_.gelu));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(step.linears(), scratch.inner, scratch.delta));
  scratch.hidden.add_(scratch.delta);
  return absl::OkStatus();
}

}  // namespace reprise
