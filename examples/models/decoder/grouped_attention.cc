#include <ATen/ops/empty.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/rope.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/head_norm.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ranks/context_attention.h"

namespace reprise {
namespace {

// A plain norm of heads comes after the rotation, which multiplies lengths by the attention factor
// a. A norm before a rotation that changes no length is the same with eps / a^2:
//   a R x / sqrt(mean((a x)^2) + eps) = R (x / sqrt(mean(x^2) + eps / a^2))
bool NormUndoesAttentionFactor(const DecoderConfig& config) {
  return config.qk_norm == QkNorm::kPlain;
}

float HeadNormEps(const DecoderConfig& config) {
  const double factor = NormUndoesAttentionFactor(config) ? RopeAttentionFactor(config.rope) : 1;
  return static_cast<float>(config.rms_norm_eps / (factor * factor));
}

// What layers need that is neither weight nor activation.
struct Tables {
  at::Tensor rotary;              // [max_position, rotary_dim] float32
  at::Tensor window_rotary;       // the same, of layers with a window
  std::vector<at::Tensor> sinks;  // one per layer, [num_q_heads] float32; or empty
};

class GroupedAttention : public DecoderAttention {
 public:
  GroupedAttention(const DecoderConfig& config, const DecoderWeights& weights, Tables tables,
                   Collectives* context)
      : config_(config), weights_(weights), tables_(std::move(tables)), context_(context) {}

  std::vector<LayerSpec> layers() const override;
  std::unique_ptr<Pass> Begin(const Step& step, const at::Tensor& like) const override;

 private:
  class GroupedPass;

  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const Tables tables_;
  Collectives* const context_;
};

std::vector<LayerSpec> GroupedAttention::layers() const {
  std::vector<LayerSpec> layers;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const LayerAttention attention = config_.AttentionOf(layer);
    LayerSpec spec = {.params = {.num_q_heads = config_.num_q_heads,
                                 .num_kv_heads = config_.num_kv_heads,
                                 .head_dim_qk = config_.head_dim,
                                 .head_dim_v = config_.head_dim},
                      .chunk_size = attention.chunk,
                      .k_scale = weights_.layers[layer].kv_scales.k,
                      .v_scale = weights_.layers[layer].kv_scales.v};
    if (config_.attention_scale.has_value()) {
      spec.params.scale = static_cast<float>(*config_.attention_scale);
    }
    if (config_.attention_softcap.has_value()) {
      spec.params.softcap = static_cast<float>(*config_.attention_softcap);
    }
    spec.params.window_left = WindowLeft(attention.window, WindowCount::kTokens);
    if (config_.sinks) spec.params.sinks = tables_.sinks[layer].const_data_ptr<float>();
    layers.push_back(spec);
  }
  return layers;
}

class GroupedAttention::GroupedPass : public Pass {
 public:
  GroupedPass(const GroupedAttention& attention, const Step& step, const at::Tensor& like)
      : of_(attention), config_(attention.config_), step_(step) {
    const int64_t q_size = int64_t{config_.num_q_heads} * config_.head_dim;
    const int64_t kv_size = int64_t{config_.num_kv_heads} * config_.head_dim;
    qkv_ = at::empty({step.num_tokens(), q_size + 2 * kv_size}, like.options());
    q_rows_ = qkv_.narrow(1, 0, q_size);
    k_rows_ = qkv_.narrow(1, q_size, kv_size);
    const at::Tensor v_rows = qkv_.narrow(1, q_size + kv_size, kv_size);
    q_ = q_rows_.unflatten(1, {config_.num_q_heads, config_.head_dim});
    k_ = k_rows_.unflatten(1, {config_.num_kv_heads, config_.head_dim});
    v_ = v_rows.unflatten(1, {config_.num_kv_heads, config_.head_dim});
  }

  absl::Status Apply(int layer, const at::Tensor& x, const at::Tensor& out) override {
    const DecoderLayerWeights& weights = of_.weights_.layers[layer];
    REPRISE_RETURN_IF_ERROR(weights.qkv->Apply(step_.linears(), x, qkv_));
    REPRISE_RETURN_IF_ERROR(Write(layer));
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                             AttendOverRanks(of_.context_, step_, layer, q_, config_.head_dim));
    return weights.o.Apply(step_.linears(), attended.flatten(1), out);
  }

 private:
  // The norm of each head; nullopt: there is none in this layer.
  std::optional<HeadNormOptions> HeadNorm(int layer) const {
    const DecoderLayerWeights& weights = of_.weights_.layers[layer];
    const bool is_plain = config_.qk_norm == QkNorm::kPlain && config_.AttentionOf(layer).rotates;
    if (config_.qk_norm != QkNorm::kWeighted && !is_plain) return std::nullopt;
    return HeadNormOptions{.q_weight = weights.q_norm,
                           .k_weight = weights.k_norm,
                           .eps = HeadNormEps(config_),
                           .form = config_.norm_weight};
  }

  // Normalises, tempers and rotates q and k, and writes k and v to the cache.
  absl::Status Write(int layer) {
    const DecoderLayerWeights& weights = of_.weights_.layers[layer];
    const LayerAttention attention = config_.AttentionOf(layer);
    if (config_.qk_norm == QkNorm::kAllHeads) {
      const float eps = static_cast<float>(config_.rms_norm_eps);
      REPRISE_RETURN_IF_ERROR(RmsNorm(q_rows_, *weights.q_norm, eps, q_rows_, config_.norm_weight));
      REPRISE_RETURN_IF_ERROR(RmsNorm(k_rows_, *weights.k_norm, eps, k_rows_, config_.norm_weight));
    }
    const bool is_tempered =
        config_.temperature.has_value() && (config_.tempers_all_layers || !attention.rotates);
    std::optional<HeadNormOptions> norm = HeadNorm(layer);
    if (norm.has_value() && (is_tempered || !attention.rotates)) {
      REPRISE_RETURN_IF_ERROR(NormaliseHeads(q_, k_, *norm));
      norm.reset();
    }
    if (is_tempered) {
      REPRISE_RETURN_IF_ERROR(TemperQueries(q_, step_.positions(), *config_.temperature));
    }
    if (!attention.rotates) return step_.Write(layer, k_, v_);
    const Tables& tables = of_.tables_;
    return step_.Write(
        layer, k_, v_,
        {.q = q_,
         .table = attention.window.has_value() ? tables.window_rotary : tables.rotary,
         .norm = norm});
  }

  const GroupedAttention& of_;
  const DecoderConfig& config_;
  const Step& step_;
  at::Tensor qkv_;     // [num_tokens, q_size + 2 * kv_size]
  at::Tensor q_rows_;  // [num_tokens, q_size], of qkv's memory; so are the others
  at::Tensor k_rows_;  // [num_tokens, kv_size]
  at::Tensor q_;       // [num_tokens, num_q_heads, head_dim]
  at::Tensor k_;       // [num_tokens, num_kv_heads, head_dim]
  at::Tensor v_;       // [num_tokens, num_kv_heads, head_dim]
};

std::unique_ptr<DecoderAttention::Pass> GroupedAttention::Begin(const Step& step,
                                                                const at::Tensor& like) const {
  return std::make_unique<GroupedPass>(*this, step, like);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderAttention>> MakeGroupedAttention(
    const DecoderConfig& config, const DecoderWeights& weights, const AttentionOptions& options) {
  const auto make_table = [&](const RopeConfig& rope) {
    const double attention_factor =
        NormUndoesAttentionFactor(config) ? 1 : RopeAttentionFactor(rope);
    return MakeRotaryTable(RopeFrequencies(rope, config.rotary_dim()), options.max_position,
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
  return std::make_unique<GroupedAttention>(config, weights, std::move(tables), options.context);
}

}  // namespace reprise
