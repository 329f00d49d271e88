#include "reprise/models/bart/bart_model.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/norm.h"

namespace reprise {
namespace {

constexpr float kEps = 1e-5f;  // LibTorch's default, which no config changes

LayerSpec SpecOf(const BartConfig& config, const BartStackConfig& stack,
                 const BartStackShare& share, AttentionKind kind) {
  const int head_dim = config.d_model / stack.num_heads;
  return {.params = {.num_q_heads = static_cast<int>(share.heads.size),
                     .num_kv_heads = static_cast<int>(share.heads.size),
                     .head_dim_qk = head_dim,
                     .head_dim_v = head_dim},
          .kind = kind};
}

std::vector<LayerSpec> MakeLayerSpecs(const BartConfig& config, const BartShare& share) {
  const auto of_decoder = [&](AttentionKind kind) {
    return SpecOf(config, config.decoder, share.decoder, kind);
  };
  std::vector<LayerSpec> layers(
      config.encoder.num_layers,
      SpecOf(config, config.encoder, share.encoder, AttentionKind::kEncoder));
  for (int layer = 0; layer < config.decoder.num_layers; ++layer) {
    layers.push_back(of_decoder(AttentionKind::kDecoder));
    layers.push_back(of_decoder(AttentionKind::kEncoderDecoder));
  }
  return layers;
}

// Part `index` of the `num_parts` parts of a fused projection, as heads.
at::Tensor Heads(const at::Tensor& fused, int index, int num_parts, int64_t num_heads) {
  const int64_t width = fused.size(1) / num_parts;
  return fused.narrow(1, index * width, width).unflatten(1, {num_heads, -1});
}

absl::Status AddAndNormalise(const at::Tensor& delta, const BartNorm& norm,
                             const at::Tensor& hidden) {
  return AddLayerNorm(delta, hidden, norm.weight, norm.bias, kEps, hidden);
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct BartModel::Scratch {
  int64_t num_heads;  // the rank's
  at::Tensor hidden;  // [num_tokens, d_model], between sublayers
  at::Tensor delta;   // [num_tokens, d_model], what a sublayer adds
  at::Tensor fused;   // [num_tokens, 3 * the width of the rank's heads]: q, k and v
  at::Tensor cross;   // fused's memory: [num_tokens, the width of the heads], q of cross attention
  at::Tensor inner;   // [num_tokens, the rank's inner elements]
};

absl::StatusOr<BartModel::Scratch> BartModel::NewScratch(const BartStackConfig& stack,
                                                         const BartStackShare& share,
                                                         int64_t num_tokens) {
  const at::TensorOptions options = weights_.embedding.options();
  const int64_t width = share.heads.Times(config_.d_model / stack.num_heads).size;
  REPRISE_ASSIGN_OR_RETURN(at::Tensor hidden, hidden_memory_.Rows(num_tokens));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor delta, delta_memory_.Rows(num_tokens));
  const at::Tensor fused = at::empty({num_tokens, 3 * width}, options);
  return Scratch{
      .num_heads = share.heads.size,
      .hidden = std::move(hidden),
      .delta = std::move(delta),
      .fused = fused,
      .cross = fused.view({-1}).narrow(0, 0, num_tokens * width).view({num_tokens, width}),
      .inner = at::empty({num_tokens, share.inner.size}, options)};
}

absl::StatusOr<std::unique_ptr<BartModel>> BartModel::Create(const BartConfig& config,
                                                             BartWeights weights,
                                                             const BartModelOptions& options) {
  const Ranks ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(const BartShare share, BartShareOf(config, ranks));
  REPRISE_RETURN_IF_ERROR(CheckBartWeights(config, weights, ranks));
  return std::unique_ptr<BartModel>(new BartModel(config, share, std::move(weights), options));
}

absl::StatusOr<std::unique_ptr<BartModel>> BartModel::Load(const std::string& folder,
                                                           const LoadWeightsOptions& load,
                                                           const BartModelOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const BartConfig config, LoadBartConfig(folder));
  LoadWeightsOptions own = load;
  own.ranks = RanksOf(options.collectives);
  REPRISE_ASSIGN_OR_RETURN(BartWeights weights, LoadBartWeights(folder, config, own));
  return Create(config, std::move(weights), options);
}

BartModel::BartModel(const BartConfig& config, const BartShare& share, BartWeights weights,
                     const BartModelOptions& options)
    : config_(config),
      share_(share),
      weights_(std::move(weights)),
      spec_{.layers = MakeLayerSpecs(config, share),
            .vocab_size = config.vocab_size,
            .max_position = config.max_seq_len,
            .max_encoder_position = config.max_seq_len,
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()},
      collectives_(options.collectives),
      vocabulary_(config.vocab_size, options.collectives),
      hidden_memory_(options.collectives, config.d_model, weights_.embedding.options()),
      delta_memory_(options.collectives, config.d_model, weights_.embedding.options()) {
  spec_.sharded_logits = vocabulary_.logits();
}

absl::Status BartModel::Encode(const EncoderStep& step) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(Scratch scratch,
                             NewScratch(config_.encoder, share_.encoder, step.num_tokens()));
    REPRISE_RETURN_IF_ERROR(Embed(step, weights_.encoder_input, scratch));
    for (int layer = 0; layer < config_.encoder.num_layers; ++layer) {
      const BartEncoderLayer& weights = weights_.encoder[layer];
      REPRISE_RETURN_IF_ERROR(AttendToSelf(step, layer, weights.self, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, weights.feed_forward, scratch));
    }
    const int64_t num_heads = share_.decoder.heads.size;
    const int64_t width =
        share_.decoder.heads.Times(config_.d_model / config_.decoder.num_heads).size;
    const at::Tensor kv = at::empty({step.num_tokens(), 2 * width}, weights_.embedding.options());
    for (int layer = 0; layer < config_.decoder.num_layers; ++layer) {
      REPRISE_RETURN_IF_ERROR(
          weights_.decoder[layer].cross.kv.Apply(step.linears(), scratch.hidden, kv));
      REPRISE_RETURN_IF_ERROR(step.WriteKeys(CrossLayer(layer), Heads(kv, 0, 2, num_heads),
                                             Heads(kv, 1, 2, num_heads)));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<at::Tensor> BartModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const at::TensorOptions options = weights_.embedding.options();
    REPRISE_ASSIGN_OR_RETURN(Scratch scratch,
                             NewScratch(config_.decoder, share_.decoder, step.num_tokens()));
    REPRISE_RETURN_IF_ERROR(Embed(step, weights_.decoder_input, scratch));
    for (int layer = 0; layer < config_.decoder.num_layers; ++layer) {
      const BartDecoderLayer& weights = weights_.decoder[layer];
      REPRISE_RETURN_IF_ERROR(AttendToSelf(step, OwnLayer(layer), weights.self, scratch));
      REPRISE_RETURN_IF_ERROR(AttendToEncoder(step, CrossLayer(layer), weights.cross, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, weights.feed_forward, scratch));
    }
    const at::Tensor last = at::empty({step.logits_indices().size(0), config_.d_model}, options);
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.hidden, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(
        vocabulary_.Logits(weights_.lm_head, step.linears(), last,
                           {step.logits(), step.sharded_logits()}, [this](const at::Tensor& own) {
                             const Share share = vocabulary_.share();
                             own.narrow(1, 0, share.size)
                                 .add_(weights_.logits_bias.narrow(-1, share.begin, share.size));
                             return absl::OkStatus();
                           }));
    return step.logits();
  });
}

template <typename AnyStep>
absl::Status BartModel::Embed(const AnyStep& step, const BartInput& input, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(vocabulary_.Embed(weights_.embedding, step.token_ids(), scratch.hidden));
  if (config_.scale_embedding) scratch.hidden.mul_(std::sqrt(static_cast<double>(config_.d_model)));
  REPRISE_RETURN_IF_ERROR(GatherRows(input.positions, step.positions(), scratch.delta));
  return AddAndNormalise(scratch.delta, input.norm, scratch.hidden);
}

template <typename AnyStep>
absl::Status BartModel::AttendToSelf(const AnyStep& step, int layer,
                                     const BartSelfAttention& weights, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.qkv.Apply(step.linears(), scratch.hidden, scratch.fused));
  const auto part = [&](int index) { return Heads(scratch.fused, index, 3, scratch.num_heads); };
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                           step.Attend(layer, part(0), part(1), part(2)));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

absl::Status BartModel::AttendToEncoder(const Step& step, int layer,
                                        const BartCrossAttention& weights, Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.q.Apply(step.linears(), scratch.hidden, scratch.cross));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                           step.Attend(layer, Heads(scratch.cross, 0, 1, scratch.num_heads)));
  REPRISE_RETURN_IF_ERROR(weights.out.Apply(step.linears(), attended.flatten(1), scratch.delta));
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

template <typename AnyStep>
absl::Status BartModel::FeedForward(const AnyStep& step, const BartFeedForward& weights,
                                    Scratch& scratch) const {
  REPRISE_RETURN_IF_ERROR(weights.up.Apply(step.linears(), scratch.hidden, scratch.inner));
  REPRISE_RETURN_IF_ERROR(Gelu(scratch.inner));
  REPRISE_RETURN_IF_ERROR(weights.down.Apply(step.linears(), scratch.inner, scratch.delta));
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives_, step.linears(), scratch.delta));
  return AddAndNormalise(scratch.delta, weights.norm, scratch.hidden);
}

}  // namespace reprise
