#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/hf/rope.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "reprise/runner/ops/merge_attention.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/rotary.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ranks/context_attention.h"

namespace reprise {
namespace {

// For the norms of latents, regardless of the config's value for the other norms: transformers'
// default.
constexpr float kLatentEps = 1e-6f;

constexpr int kExpanded = 0;  // in ModelSpec::within

class MlaAttention : public DecoderAttention {
 public:
  MlaAttention(const DecoderConfig& config, const DecoderWeights& weights, at::Tensor rotary,
               const AttentionOptions& options)
      : config_(config),
        latent_(*config.latent),
        weights_(weights),
        rotary_(std::move(rotary)),
        options_(options) {}

  std::vector<LayerSpec> layers() const override {
    LayerSpec layer = {.params = ExpandedParams()};
    if (options_.mla_cache == MlaCache::kLatent)
      layer = {.params = AbsorbedParams(), .v_in_k = true};
    return std::vector<LayerSpec>(config_.num_layers, layer);
  }
  std::vector<AttentionParams> within() const override {
    if (options_.mla_cache == MlaCache::kExpanded) return {};
    return {ExpandedParams()};
  }
  std::unique_ptr<Pass> Begin(const Step& step, const at::Tensor& like) const override;

 private:
  class MlaPass;

  float scale() const { return static_cast<float>(*config_.attention_scale); }

  // One latent head, of which V is the first part.
  AttentionParams AbsorbedParams() const {
    return {.num_q_heads = config_.num_q_heads,
            .num_kv_heads = 1,
            .head_dim_qk = latent_.latent_dim(),
            .head_dim_v = latent_.kv_rank,
            .scale = scale()};
  }
  AttentionParams ExpandedParams() const {
    return {.num_q_heads = config_.num_q_heads,
            .num_kv_heads = config_.num_q_heads,
            .head_dim_qk = latent_.qk_dim(),
            .head_dim_v = latent_.v_dim,
            .scale = scale()};
  }

  const DecoderConfig& config_;
  const LatentAttention& latent_;
  const DecoderWeights& weights_;
  const at::Tensor rotary_;  // [max_position, rope_dim] float32
  const AttentionOptions options_;
};

class MlaAttention::MlaPass : public Pass {
 public:
  MlaPass(const MlaAttention& attention, const Step& step, const at::Tensor& like)
      : of_(attention), latent_(attention.latent_), step_(step) {
    const int64_t num_tokens = step.num_tokens();
    const int64_t heads = attention.config_.num_q_heads;
    const int64_t absorbed_heads = options().mla_cache == MlaCache::kLatent ? heads : 0;
    const at::TensorOptions options = like.options();
    q_low_ = at::empty({num_tokens, latent_.q_rank.value_or(0)}, options);
    q_ = at::empty({num_tokens, heads, latent_.qk_dim()}, options);
    q_nope_ = q_.narrow(2, 0, latent_.nope_dim);
    q_rope_ = q_.narrow(2, latent_.nope_dim, latent_.rope_dim);
    latents_ = at::empty({num_tokens, 1, latent_.latent_dim()}, options);
    compressed_ = latents_.select(1, 0).narrow(1, 0, latent_.kv_rank);
    k_rope_ = latents_.narrow(2, latent_.kv_rank, latent_.rope_dim);
    q_latent_ = at::empty({num_tokens, absorbed_heads, latent_.latent_dim()}, options);
    values_ = at::empty({num_tokens, heads, latent_.v_dim}, options);
  }

  absl::Status Apply(int layer, const at::Tensor& x, const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(Project(layer, x));
    if (options().mla_cache == MlaCache::kExpanded) {
      REPRISE_RETURN_IF_ERROR(AttendExpanded(layer));
    } else {
      REPRISE_RETURN_IF_ERROR(step_.Write(layer, latents_));
      REPRISE_RETURN_IF_ERROR(Absorb(layer));
      // A step attends in two parts only if a row may have several queries.
      if (step_.max_query_len() > std::max(options().max_absorbed_query_len, 1)) {
        REPRISE_RETURN_IF_ERROR(AttendUnabsorbed(layer));
      } else {
        REPRISE_RETURN_IF_ERROR(AttendAbsorbed(layer));
      }
    }
    return of_.weights_.layers[layer].o.Apply(step_.linears(), values_.flatten(1), out);
  }

 private:
  const AttentionOptions& options() const { return of_.options_; }
  const LatentWeights& WeightsOf(int layer) const { return *of_.weights_.layers[layer].latent; }

  // q_ and latents_ of x, normalised and rotated.
  absl::Status Project(int layer, const at::Tensor& x) {
    const LatentWeights& weights = WeightsOf(layer);
    const at::Tensor q = q_.flatten(1);
    if (weights.q_a.has_value()) {
      REPRISE_RETURN_IF_ERROR(weights.q_a->Apply(step_.linears(), x, q_low_));
      REPRISE_RETURN_IF_ERROR(RmsNorm(q_low_, *weights.q_a_norm, kLatentEps, q_low_));
      REPRISE_RETURN_IF_ERROR(weights.q.Apply(step_.linears(), q_low_, q));
    } else {
      REPRISE_RETURN_IF_ERROR(weights.q.Apply(step_.linears(), x, q));
    }
    REPRISE_RETURN_IF_ERROR(weights.kv_a.Apply(step_.linears(), x, latents_.select(1, 0)));
    REPRISE_RETURN_IF_ERROR(RmsNorm(compressed_, weights.kv_a_norm, kLatentEps, compressed_));
    return Rotary(q_rope_, k_rope_, step_.positions(), of_.rotary_);
  }

  // q_latent_ of q_.
  absl::Status Absorb(int layer) {
    q_latent_.narrow(2, latent_.kv_rank, latent_.rope_dim).copy_(q_rope_);
    return WeightsOf(layer).absorb.Apply(step_.linears(), q_nope_,
                                         q_latent_.narrow(2, 0, latent_.kv_rank));
  }

  // These three leave the output of attention in values_.
  absl::Status AttendAbsorbed(int layer) {
    REPRISE_ASSIGN_OR_RETURN(
        const at::Tensor attended,
        AttendOverRanks(options().context, step_, layer, q_latent_, latent_.kv_rank));
    return WeightsOf(layer).expand.Apply(step_.linears(), attended, values_);
  }

  absl::Status AttendUnabsorbed(int layer) {
    REPRISE_ASSIGN_OR_RETURN(const auto expanded, Expand(layer));
    REPRISE_ASSIGN_OR_RETURN(const AttentionPart within,
                             step_.AttendWithin(kExpanded, q_, expanded.first, expanded.second));
    REPRISE_ASSIGN_OR_RETURN(
        const AttentionPart latents,
        AttendBeforeOverRanks(options().context, step_, layer, q_latent_, latent_.kv_rank));
    const at::Tensor before = at::empty_like(values_);
    REPRISE_RETURN_IF_ERROR(WeightsOf(layer).expand.Apply(step_.linears(), latents.out, before));
    return MergeAttention({within.out, before}, {within.lse, latents.lse}, values_);
  }

  absl::Status AttendExpanded(int layer) {
    REPRISE_ASSIGN_OR_RETURN(const auto expanded, Expand(layer));
    REPRISE_RETURN_IF_ERROR(step_.Write(layer, expanded.first, expanded.second));
    REPRISE_ASSIGN_OR_RETURN(values_,
                             AttendOverRanks(options().context, step_, layer, q_, latent_.v_dim));
    return absl::OkStatus();
  }

  // Keys [num_tokens, num_heads, qk_dim] and values [.., v_dim] of the step's tokens, made of their
  // latents.
  absl::StatusOr<std::pair<at::Tensor, at::Tensor>> Expand(int layer) const {
    const int64_t heads = q_.size(1);
    const int64_t nope = latent_.nope_dim;
    // Head by head; the rotated key is the same for all.
    const at::Tensor expanded = at::empty({q_.size(0), heads, nope + latent_.v_dim}, q_.options());
    REPRISE_RETURN_IF_ERROR(
        WeightsOf(layer).kv_b.Apply(step_.linears(), compressed_, expanded.flatten(1)));
    at::Tensor k = at::empty_like(q_);
    k.narrow(2, 0, nope).copy_(expanded.narrow(2, 0, nope));
    k.narrow(2, nope, latent_.rope_dim).copy_(k_rope_.expand({-1, heads, -1}));
    return std::pair(std::move(k), expanded.narrow(2, nope, latent_.v_dim));
  }

  const MlaAttention& of_;
  const LatentAttention& latent_;
  const Step& step_;
  at::Tensor q_low_;       // [num_tokens, q_rank]
  at::Tensor q_;           // [num_tokens, heads, qk_dim]
  at::Tensor q_nope_;      // [num_tokens, heads, nope_dim], of q's memory
  at::Tensor q_rope_;      // [num_tokens, heads, rope_dim], likewise
  at::Tensor latents_;     // [num_tokens, 1, latent_dim], what is cached
  at::Tensor compressed_;  // [num_tokens, kv_rank], of the latents' memory
  at::Tensor k_rope_;      // [num_tokens, 1, rope_dim], likewise
  at::Tensor q_latent_;    // [num_tokens, heads, latent_dim], of MlaCache::kLatent
  at::Tensor values_;      // [num_tokens, heads, v_dim]
};

std::unique_ptr<DecoderAttention::Pass> MlaAttention::Begin(const Step& step,
                                                            const at::Tensor& like) const {
  return std::make_unique<MlaPass>(*this, step, like);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderAttention>> MakeLatentAttention(
    const DecoderConfig& config, const DecoderWeights& weights, const AttentionOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(
      at::Tensor table,
      MakeRotaryTable(RopeFrequencies(config.rope, config.rotary_dim()), options.max_position,
                      static_cast<float>(RopeAttentionFactor(config.rope)),
                      weights.embedding.device()));
  return std::make_unique<MlaAttention>(config, weights, std::move(table), options);
}

}  // namespace reprise
