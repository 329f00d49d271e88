#include "reprise/models/decoder/dense_decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "reprise/hf/rope.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/moe/experts.h"
#include "reprise/runner/ops/expert_linear.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

class DenseDecoder {
 public:
  DenseDecoder(const DecoderModel& model, const DenseStorage& storage)
      : config_(model.config()), weights_(model.weights()), storage_(storage) {}

  at::Tensor Logits(const std::vector<int32_t>& tokens) {
    at::Tensor x =
        Double(weights_.embedding)
            .index_select(0, at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())));
    x = x * config_.embedding_scale;
    for (int i = 0; i < config_.num_layers; ++i) {
      const DecoderLayerWeights& layer = weights_.layers[i];
      const at::Tensor normed = Norm(x, layer.input_norm);
      const at::Tensor attended =
          layer.latent.has_value() ? LatentAttention(i, normed) : Attention(i, normed);
      x = x + OptionalNorm(attended, layer.attention_output_norm) * config_.residual_scale;
      x = x + OptionalNorm(FeedForward(layer, Norm(x, layer.mlp_norm)), layer.mlp_output_norm) *
                  config_.residual_scale;
    }
    return Capped(Apply(weights_.lm_head, Norm(x, weights_.final_norm)) / config_.logit_divisor,
                  config_.logit_softcap);
  }

 private:
  static at::Tensor Double(const at::Tensor& x) { return x.to(at::kDouble); }

  static at::Tensor Apply(const Linear& linear, const at::Tensor& x) {
    std::optional<at::Tensor> bias;
    if (linear.bias().has_value()) bias = Double(*linear.bias());
    return at::linear(x, linear.Dequantised(at::kDouble), bias);
  }

  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    const int plus = config_.norm_weight == NormWeight::kOnePlus ? 1 : 0;
    return Normalised(x, config_.rms_norm_eps) * (Double(weight) + plus);
  }

  static at::Tensor Normalised(const at::Tensor& x, double eps) {
    return x * at::rsqrt(x.square().mean(-1, true) + eps);
  }

  // Of MLA's latents.
  static at::Tensor LatentNorm(const at::Tensor& x, const at::Tensor& weight) {
    return Normalised(x, 1e-6) * Double(weight);
  }

  at::Tensor OptionalNorm(const at::Tensor& x, const std::optional<at::Tensor>& weight) const {
    return weight.has_value() ? Norm(x, *weight) : x;
  }

  static at::Tensor Capped(const at::Tensor& x, std::optional<double> cap) {
    return cap.has_value() ? at::tanh(x / *cap) * *cap : x;
  }

  // x [heads, num_tokens, rotary_dim or more]: the dims after rotary_dim stay.
  at::Tensor Rotate(int i, const at::Tensor& all) const {
    const at::Tensor x = all.narrow(2, 0, config_.rotary_dim());
    const RopeConfig& rope = config_.RopeOf(i);
    const std::vector<float> frequencies = RopeFrequencies(rope, config_.rotary_dim());
    const at::Tensor angles =
        at::outer(at::arange(x.size(1), at::kDouble), at::tensor(frequencies, at::kDouble));
    const std::vector<at::Tensor> halves = (x * RopeAttentionFactor(rope)).chunk(2, -1);
    return at::cat({halves[0] * angles.cos() - halves[1] * angles.sin(),
                    halves[1] * angles.cos() + halves[0] * angles.sin(),
                    all.narrow(2, x.size(2), all.size(2) - x.size(2))},
                   -1);
  }

  // q or k [heads, n, head_dim] as attention takes it, exactly by the families' papers: a weighted
  // norm before the rotation, a plain one after it.
  at::Tensor Prepared(int i, at::Tensor x, const std::optional<at::Tensor>& weight) const {
    if (config_.qk_norm == QkNorm::kWeighted) x = Norm(x, *weight);
    if (config_.qk_norm == QkNorm::kAllHeads) {
      const at::Tensor rows = x.transpose(0, 1).flatten(1);
      x = Norm(rows, *weight).view({x.size(1), x.size(0), x.size(2)}).transpose(0, 1);
    }
    if (!config_.AttentionOf(i).rotates) return x;
    x = Rotate(i, x);
    return config_.qk_norm == QkNorm::kPlain ? Normalised(x, config_.rms_norm_eps) : x;
  }

  // [n]: the factors of the queries.
  at::Tensor Temperature(int i, int64_t n) const {
    const at::Tensor positions = at::arange(n, at::kDouble);
    const bool is_tempered = config_.tempers_all_layers || !config_.AttentionOf(i).rotates;
    if (!is_tempered || !config_.temperature.has_value()) return positions * 0 + 1;
    return at::log1p(at::floor((positions + config_.temperature->position_offset) /
                               config_.temperature->floor_scale)) *
               config_.temperature->attn_scale +
           1;
  }

  // [n, n]: 0 where query (row) sees key (column), -inf elsewhere.
  at::Tensor Mask(int i, int64_t n) const {
    const LayerAttention attention = config_.AttentionOf(i);
    const at::Tensor positions = at::arange(n, at::kLong);
    const at::Tensor query = positions.view({n, 1});
    at::Tensor hidden = positions.gt(query);
    if (attention.window) hidden = hidden.logical_or(positions.le(query - *attention.window));
    if (attention.chunk) {
      hidden = hidden.logical_or(
          positions.floor_divide(*attention.chunk).ne(query.floor_divide(*attention.chunk)));
    }
    return at::zeros({n, n}, at::kDouble)
        .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }

  static at::Tensor Stored(const DenseStorage::Stored& stored, int i, const at::Tensor& x) {
    return stored ? stored(i, x) : x;
  }

  at::Tensor Attention(int i, const at::Tensor& x) const {
    const DecoderLayerWeights& layer = weights_.layers[i];
    const int64_t n = x.size(0);
    const int64_t num_q = config_.num_q_heads;
    const int64_t num_kv = config_.num_kv_heads;
    const at::Tensor heads = Apply(*layer.qkv, x)
                                 .view({n, num_q + 2 * num_kv, config_.head_dim})
                                 .transpose(0, 1);  // [heads, n, head_dim]
    const at::Tensor q =
        Prepared(i, heads.narrow(0, 0, num_q), layer.q_norm) * Temperature(i, n).view({n, 1});
    const at::Tensor k =
        Stored(storage_.keys, i, Prepared(i, heads.narrow(0, num_q, num_kv), layer.k_norm))
            .repeat_interleave(num_q / num_kv, 0);
    const at::Tensor v = Stored(storage_.values, i, heads.narrow(0, num_q + num_kv, num_kv))
                             .repeat_interleave(num_q / num_kv, 0);
    const double scale = config_.attention_scale.value_or(1 / std::sqrt(config_.head_dim));
    const at::Tensor scores =
        Capped(at::matmul(q, k.transpose(1, 2)) * scale, config_.attention_softcap);
    at::Tensor visible = scores + Mask(i, n);
    if (config_.sinks) {  // one more key, without a value
      visible =
          at::cat({visible, Double(*layer.sinks).view({num_q, 1, 1}).expand({num_q, n, 1})}, 2);
    }
    const at::Tensor out =
        at::matmul(at::softmax(visible, -1).narrow(2, 0, n), v);  // [num_q, n, head_dim]
    return Apply(layer.o, out.transpose(0, 1).reshape({n, num_q * config_.head_dim}));
  }

  // MLA by its paper, with the keys and values of each head. storage_.latents makes what is cached.
  at::Tensor LatentAttention(int i, const at::Tensor& x) const {
    const LatentWeights& layer = *weights_.layers[i].latent;
    const reprise::LatentAttention& sizes = *config_.latent;
    const int64_t n = x.size(0);
    const int64_t heads = config_.num_q_heads;
    at::Tensor q = x;
    if (layer.q_a.has_value()) q = LatentNorm(Apply(*layer.q_a, x), *layer.q_a_norm);
    q = Apply(layer.q, q).reshape({n, heads, sizes.qk_dim()}).transpose(0, 1);
    q = at::cat(
        {q.narrow(2, 0, sizes.nope_dim), Rotate(i, q.narrow(2, sizes.nope_dim, sizes.rope_dim))},
        2);
    const at::Tensor down = Apply(layer.kv_a, x);
    const at::Tensor rotated =
        Rotate(i, down.narrow(1, sizes.kv_rank, sizes.rope_dim).unsqueeze(0)).squeeze(0);
    const at::Tensor cached = Stored(
        storage_.latents, i,
        at::cat({LatentNorm(down.narrow(1, 0, sizes.kv_rank), layer.kv_a_norm), rotated}, 1));
    const at::Tensor k_rope = cached.narrow(1, sizes.kv_rank, sizes.rope_dim).unsqueeze(0);
    const at::Tensor kv = Apply(layer.kv_b, cached.narrow(1, 0, sizes.kv_rank))
                              .reshape({n, heads, sizes.nope_dim + sizes.v_dim})
                              .transpose(0, 1);
    const at::Tensor k =
        at::cat({kv.narrow(2, 0, sizes.nope_dim), k_rope.expand({heads, n, sizes.rope_dim})}, 2);
    const at::Tensor scores =
        at::matmul(q, k.transpose(1, 2)) * *config_.attention_scale + Mask(i, n);
    const at::Tensor out =
        at::matmul(at::softmax(scores, -1), kv.narrow(2, sizes.nope_dim, sizes.v_dim));
    return Apply(weights_.layers[i].o, out.transpose(0, 1).reshape({n, heads * sizes.v_dim}));
  }

  static at::Tensor Gated(Activation activation, const at::Tensor& gate_up) {
    const std::vector<at::Tensor> halves = gate_up.chunk(2, -1);
    if (activation == Activation::kClampedSwiglu) {
      const at::Tensor gate = halves[0].clamp_max(7);
      return gate * at::sigmoid(gate * 1.702) * (halves[1].clamp(-7, 7) + 1);
    }
    return (activation == Activation::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh")) *
           halves[1];
  }

  // x of one token and the output of one expert.
  at::Tensor OfExpert(const ExpertWeights& experts, int64_t expert, const at::Tensor& x) const {
    const auto apply = [&](const ExpertLinear& linear, const at::Tensor& input) {
      std::optional<at::Tensor> bias;
      if (linear.bias().has_value()) bias = Double((*linear.bias())[expert]);
      return at::linear(input, Double(linear.weight()[expert]), bias);
    };
    return apply(experts.down, Gated(config_.experts->activation, apply(experts.gate_up, x)));
  }

  // The scores by which experts are chosen: -inf outside the chosen groups.
  at::Tensor ChoiceScores(const ExpertWeights& experts, const at::Tensor& scores) const {
    const ExpertsConfig& config = *config_.experts;
    at::Tensor choice = scores;
    if (config.choice_bias) choice = choice + Double(*experts.choice_bias);
    if (config.num_groups == 1) return choice;
    const at::Tensor groups = choice.view({choice.size(0), config.num_groups, -1});
    const at::Tensor sorted = std::get<0>(groups.sort(-1, /*descending=*/true));
    const at::Tensor of_group = config.group_score == GroupScore::kMax
                                    ? sorted.select(2, 0)
                                    : sorted.select(2, 0) + sorted.select(2, 1);
    const at::Tensor best =
        of_group.argsort(-1, /*descending=*/true).narrow(1, 0, config.num_chosen_groups);
    const at::Tensor is_out = at::ones_like(of_group, at::kBool).scatter(1, best, false);
    return groups.masked_fill(is_out.unsqueeze(2), -std::numeric_limits<double>::infinity())
        .flatten(1);
  }

  at::Tensor Mixture(const ExpertWeights& experts, const at::Tensor& x) const {
    const ExpertsConfig& config = *config_.experts;
    const at::Tensor all_logits = Apply(experts.router, x);
    at::Tensor logits = all_logits.narrow(1, 0, config.num_experts);
    if (experts.router_bias.has_value()) logits = logits + Double(*experts.router_bias);
    const at::Tensor scores =
        config.scores == RouterScores::kSigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
    const at::Tensor order = ChoiceScores(experts, scores).argsort(-1, /*descending=*/true);
    std::vector<at::Tensor> rows;
    for (int64_t token = 0; token < x.size(0); ++token) {
      const at::Tensor chosen = order[token].narrow(0, 0, config.num_chosen);
      at::Tensor factors = scores[token].index_select(0, chosen);
      if (config.normalises) factors = factors / factors.sum();
      factors = factors * config.scale;
      at::Tensor sum = at::zeros({x.size(1)}, at::kDouble);
      for (int64_t i = 0; i < config.num_chosen; ++i) {
        sum = sum + OfExpert(experts, chosen[i].item<int64_t>(), x[token]) * factors[i];
      }
      rows.push_back(sum);
    }
    const at::Tensor routed = at::stack(rows);
    if (config.shared_inner_size == 0) return routed;
    at::Tensor shared =
        Apply(*experts.shared_down, Gated(config.activation, Apply(*experts.shared_gate_up, x)));
    if (config.shared_gate)
      shared = shared * at::sigmoid(all_logits.narrow(1, config.num_experts, 1));
    return routed + shared;
  }

  at::Tensor FeedForward(const DecoderLayerWeights& layer, const at::Tensor& x) const {
    if (layer.experts.has_value()) return Mixture(*layer.experts, x);
    return Apply(*layer.down, Gated(config_.activation, Apply(*layer.gate_up, x)));
  }

  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  const DenseStorage storage_;
};

}  // namespace

at::Tensor DenseLogits(const DecoderModel& model, const std::vector<int32_t>& tokens,
                       const DenseStorage& storage) {
  return DenseDecoder(model, storage).Logits(tokens);
}

}  // namespace reprise
