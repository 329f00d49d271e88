#include "reprise/models/deepseek/dense_mla.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <optional>

#include "reprise/hf/rope.h"
#include "reprise/models/deepseek/mla_config.h"
#include "reprise/models/deepseek/mla_weights.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

at::Tensor Apply(const Linear& linear, const at::Tensor& x) {
  std::optional<at::Tensor> bias;
  if (linear.bias().has_value()) bias = linear.bias()->to(at::kDouble);
  return at::linear(x, linear.weight().to(at::kDouble), bias);
}

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight.to(at::kDouble);
}

// x [heads, num_tokens, qk_rope_head_dim]
at::Tensor Rotate(const MlaConfig& config, const at::Tensor& x) {
  const std::vector<float> frequencies = RopeFrequencies(config.rope, config.qk_rope_head_dim);
  const at::Tensor angles =
      at::outer(at::arange(x.size(1), at::kDouble), at::tensor(frequencies, at::kDouble));
  const std::vector<at::Tensor> halves = (x * RopeAttentionFactor(config.rope)).chunk(2, -1);
  return at::cat({halves[0] * angles.cos() - halves[1] * angles.sin(),
                  halves[1] * angles.cos() + halves[0] * angles.sin()},
                 -1);
}

at::Tensor Attention(const MlaConfig& config, const MlaLayerWeights& layer, const at::Tensor& x,
                     const std::function<at::Tensor(const at::Tensor&)>& stored) {
  constexpr double kEps = 1e-6;
  const int64_t n = x.size(0);
  const int64_t heads = config.num_heads;
  at::Tensor q = x;
  if (layer.q_a.has_value()) q = Norm(Apply(*layer.q_a, x), *layer.q_a_norm, kEps);
  q = Apply(layer.q, q).reshape({n, heads, config.qk_head_dim()}).transpose(0, 1);
  q = at::cat({q.narrow(2, 0, config.qk_nope_head_dim),
               Rotate(config, q.narrow(2, config.qk_nope_head_dim, config.qk_rope_head_dim))},
              2);
  const at::Tensor down = Apply(layer.kv_a, x);
  const at::Tensor cached = stored(at::cat(
      {Norm(down.narrow(1, 0, config.kv_lora_rank), layer.kv_a_norm, kEps),
       Rotate(config, down.narrow(1, config.kv_lora_rank, config.qk_rope_head_dim).unsqueeze(0))
           .squeeze(0)},
      1));
  const at::Tensor latent = cached.narrow(1, 0, config.kv_lora_rank);
  const at::Tensor k_rope =
      cached.narrow(1, config.kv_lora_rank, config.qk_rope_head_dim).unsqueeze(0);
  const at::Tensor kv = Apply(layer.kv_b, latent)
                            .reshape({n, heads, config.qk_nope_head_dim + config.v_head_dim})
                            .transpose(0, 1);
  const at::Tensor k = at::cat({kv.narrow(2, 0, config.qk_nope_head_dim),
                                k_rope.expand({heads, n, config.qk_rope_head_dim})},
                               2);
  const at::Tensor v = kv.narrow(2, config.qk_nope_head_dim, config.v_head_dim);
  const at::Tensor hidden = at::ones({n, n}, at::kBool).triu(1);
  const at::Tensor scores = (at::matmul(q, k.transpose(1, 2)) * config.attention_scale)
                                .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor out = at::matmul(at::softmax(scores, -1), v);
  return Apply(layer.o, out.transpose(0, 1).reshape({n, heads * config.v_head_dim}));
}

at::Tensor FeedForward(const MlaLayerWeights& layer, const at::Tensor& x) {
  const std::vector<at::Tensor> halves = Apply(layer.gate_up, x).chunk(2, -1);
  return Apply(layer.down, at::silu(halves[0]) * halves[1]);
}

}  // namespace

at::Tensor DenseLogits(const MlaModel& model, const std::vector<int32_t>& tokens,
                       const StoredLatents& stored) {
  const MlaConfig& config = model.config();
  const MlaWeights& weights = model.weights();
  const double eps = config.rms_norm_eps;
  at::Tensor x =
      weights.embedding.to(at::kDouble)
          .index_select(0, at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const MlaLayerWeights& layer = weights.layers[i];
    x = x + Attention(config, layer, Norm(x, layer.input_norm, eps), [&](const at::Tensor& cached) {
          return stored ? stored(static_cast<int>(i), cached) : cached;
        });
    x = x + FeedForward(layer, Norm(x, layer.mlp_norm, eps));
  }
  return Apply(weights.lm_head, Norm(x, weights.final_norm, eps));
}

}  // namespace reprise
