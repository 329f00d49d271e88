// Functions of single elements: the gate of a feed-forward, GELU, the soft cap of logits and the
// temperature of queries.
//
//   gate_up_proj.Apply(context, x, gate_up);  // one product for both
//   GateMul(Activation::kSilu, gate_up, activated);
//
//   weights.up.Apply(step.linears(), x, inner);
//   Gelu(inner);  // or Gelu(inner, GeluForm::kTanh)
//
//   weights.lm_head.Apply(step.linears(), last, step.logits());
//   Softcap(step.logits(), 30.0f);
//
//   TemperQueries(q, step.positions(), {.attn_scale = 0.1f, .floor_scale = 8192});
//
// Each is computed in float32 and rounded to the dtype. Tensors are float32, float16 or bfloat16;
// rows may be strided, within a row the stride is 1. Nothing is allocated or synchronised, so the
// calls may be captured.
//
// Thread safety: safe if the tensors are. Errors: InvalidArgument, naming the argument. Cost: one
// launch, which reads its input once and writes its output once.

#ifndef REPRISE_RUNNER_OPS_ELEMENTWISE_H_
#define REPRISE_RUNNER_OPS_ELEMENTWISE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The gate of a gated feed-forward (Shazeer, 2020): out = activation(gate) * up. gate_up [num_rows,
// 2 * size] holds the gate in its first half; out [num_rows, size] has its dtype and device and
// must not overlap it. The activation is rounded to the dtype before the product, as in Hugging
// Face's models. kClampedSwiglu clamps gate and up first and multiplies by up + 1.
absl::Status GateMul(Activation activation, const at::Tensor& gate_up, const at::Tensor& out);

// GELU (Hendrycks and Gimpel, 2016) for feed-forwards without a gate, in place: x = x / 2 *
// (1 + erf(x / sqrt(2))), or its tanh approximation. x [num_rows, size].
absl::Status Gelu(const at::Tensor& x, GeluForm form = GeluForm::kErf);

// Soft cap of logits as in Gemma 2: x = cap * tanh(x / cap). x [num_rows, size], in place; cap > 0.
absl::Status Softcap(const at::Tensor& x, float cap);

// Attention temperature that grows with the position, of Llama 4's layers without rotation, after
// "Scalable-Softmax" (Nakanishi, 2025): q = q * t(position),
//
//   t(p) = 1 + attn_scale * log(1 + floor((p + 1) / floor_scale))
//
// Queries before position floor_scale - 1 keep their bits. q [num_tokens, num_q_heads, head_dim],
// in place; tokens and heads may be strided, as views of a fused projection are. positions
// [num_tokens] int32 on q's device; a negative one counts as 0.
absl::Status TemperQueries(const at::Tensor& q, const at::Tensor& positions,
                           const QueryTemperature& temperature);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ELEMENTWISE_H_
