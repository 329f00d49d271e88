#include "examples/models/bart/bart_model.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>
#include <vector>

#include "attention/attention_params.h"
#include "attention/layer_spec.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "runner/ops/elementwise.h"
#include "runner/ops/gather_rows.h"
#include "runner/ops/norm.h"

namespace reprise {
namespace {

constexpr float kEps = 1e-5f;  // LibTorch's default, which no config changes

LayerSpec SpecOf(const BartConfig& config, const BartStackConfig& stack, AttentionKind kind) {
  const int head_dim = config.d_model / stack.num_heads;
  return {.params = {.num_q_heads = stack.num_heads,
                     .num_kv_heads = stack.num_heads,
                     .head_dim_qk = head_dim,
                     .head_dim_v = head_dim},
          .kind = kind};
}

std::vector<LayerSpec> MakeLayerSpecs(const BartConfig& config) {
  std::vector<LayerSpec> layers(config.encoder.num_layers,
                                SpecOf(config, config.encoder, AttentionKind::kEncoder));
  for (int layer = 0; layer < config.decoder.num_layers; ++layer) {
    layers.push_back(SpecOf(config, config.decoder, AttentionKind::kDecoder));
    layers.push_back(SpecOf(config, config.decoder, AttentionKind::kEncoderDecoder));
  }
  return layers;
}

// Columns [index * width, (index + 1) * width) of a fused projection, as heads.
at::Tensor Heads(const at::Tensor& fused, int index, int width, int num_heads) {
  return fused.narrow(1, int64_t{index} * width, width).unflatten(1, {num_heads, -1});
}

absl::Status AddAndNormalise(const at::Tensor& delta, const BartNorm& norm,
                             const at::Tensor& hidden) {
  return AddLayerNorm(delta, hidden, norm.weight, norm.bias, kEps, hidden);
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct BartModel::Scratch {
  Scratch(const BartConfig& config, const BartStackConfig& stack, int64_t num_tokens,
          const at::TensorOptions& options)
      : num_heads(stack.num_heads),
        hidden(at::empty({num_tokens, config.d_model}, options)),
        delta(at::empty({num_tokens, config.d_model}, options)),
        fused(at::empty({num_tokens, 3 * int64_t{config.d_model}}, options)),
        inner(at::empty({num_tokens, stack.ffn_dim}, options)) {}

  int num_heads;
  at::Tensor hidden;  // [num_tokens, d_model], between sublayers
  at::Tensor delta;   // [num_tokens, d_model], what a sublayer adds
  at::Tensor fused;   // [num_tokens, 3 * d_model]: q, k and v; or the k and v of cross attention
  at::Tensor inner;   // [num_tokens, ffn_dim]
};

absl::StatusOr<std::unique_ptr<BartModel>> BartModel::Create(const BartConfig& config,
                                                             BartWeights weights) {
  REPRISE_RETURN_IF_ERROR(CheckBartWeights(config, weights));
  return std::unique_ptr<BartModel>(new BartModel(config, std::move(weights)));
}

absl::StatusOr<std::unique_ptr<BartModel>> BartModel::Load(const std::string& folder,
                                                           const LoadWeightsOptions& load) {
  REPRISE_ASSIGN_OR_RETURN(const BartConfig config, LoadBartConfig(folder));
  REPRISE_ASSIGN_OR_RETURN(BartWeights weights, LoadBartWeights(folder, config, load));
  return Create(config, std::move(weights));
}

BartModel::BartModel(const BartConfig& config, BartWeights weights)
    : config_(config),
      weights_(std::move(weights)),
      spec_{.layers = MakeLayerSpecs(config),
            .vocab_size = config.vocab_size,
            .max_position = config.max_seq_len,
            .max_encoder_position = config.max_seq_len,
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()} {}

absl::Status BartModel::Encode(const EncoderStep& step) {
  return CatchTorch([&]() -> absl::Status {
    Scratch scratch(config_, config_.encoder, step.num_tokens(), weights_.embedding.options());
    REPRISE_RETURN_IF_ERROR(Embed(step, weights_.encoder_input, scratch));
    for (int layer = 0; layer < config_.encoder.num_layers; ++layer) {
      const BartEncoderLayer& weights = weights_.encoder[layer];
      REPRISE_RETURN_IF_ERROR(AttendToSelf(step, layer, weights.self, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, weights.feed_forward, scratch));
    }
    const int width = config_.d_model;
    const at::Tensor kv = scratch.fused.narrow(1, 0, 2 * int64_t{width});
    for (int layer = 0; layer < config_.decoder.num_layers; ++layer) {
      REPRISE_RETURN_IF_ERROR(
          weights_.decoder[layer].cross.kv.Apply(step.linears(), scratch.hidden, kv));
      const int num_heads = config_.decoder.num_heads;
      REPRISE_RETURN_IF_ERROR(step.WriteKeys(CrossLayer(layer), Heads(kv, 0, width, num_heads),
                                             Heads(kv, 1, width, num_heads)));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<at::Tensor> BartModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const at::TensorOptions options = weights_.embedding.options();
    Scratch scratch(config_, config_.decoder, step.num_tokens(), options);
    REPRISE_RETURN_IF_ERROR(Embed(step, weights_.decoder_input, scratch));
    for (int layer = 0; layer < config_.decoder.num_layers; ++layer) {
      const BartDecoderLayer& weights = weights_.decoder[layer];
      REPRISE_RETURN_IF_ERROR(AttendToSelf(step, OwnLayer(layer), weights.self, scratch));
      REPRISE_RETURN_IF_ERROR(AttendToEncoder(step, CrossLayer(layer), weights.cross, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, weights.feed_forward, scratch));
    }
    const at::Tensor last = at::empty({step.logits_indices().size(0), config_.d_model}, options);
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.hidden, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(weights_.lm_head.Apply(step.linears(), last, step.logits()));
    step.logits().add_(weights_.logits_bias);
    return step.logits();
  });
}

template <typename AnyStep>
absl::Status BartModel::Embed(const AnyStep& step, const BartInput& input, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(GatherRows(weights_.embedding, step.token_ids(), scratch.hidden));
  if (config_.scale_embedding) scratch.hidden.mul_(std::sqrt(static_cast<double>(config_.d_model)));
  REPRISE_RETURN_IF_ERROR(GatherRows(input.positions, step.positions(), scratch.delta));
  return AddAndNormalise(scratch.delta, input.norm, scratch.hidden);
}

template <typename AnyStep>
absl::Status BartModel::AttendToSelf(const AnyStep& step, int layer,
                                     const BartSelfAttention& weights, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.qkv.Apply(step.linears(), scratch.hidden, scratch.fused));
  const auto part = [&](int index) {
    return Heads(scratch.fused, index, config_.d_model, scratch.num_heads);
  };
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                           step.Attend(layer, part(0), part(1), part(2)));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

absl::Status BartModel::AttendToEncoder(const Step& step, int layer,
                                        const BartCrossAttention& weights, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.q.Apply(step.linears(), scratch.hidden, scratch.delta));
  REPRISE_ASSIGN_OR_RETURN(
      const at::Tensor attended,
      step.Attend(layer, Heads(scratch.delta, 0, config_.d_model, scratch.num_heads)));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

template <typename AnyStep>
absl::Status BartModel::FeedForward(const AnyStep& step, const BartFeedForward& weights,
                                    Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.up.Apply(step.linears(), scratch.hidden, scratch.inner));
  REPRISE_RETURN_IF_ERROR(Gelu(scratch.inner));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(step.linears(), scratch.inner, scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

}  // namespace reprise
