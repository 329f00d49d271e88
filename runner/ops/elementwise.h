// Elementwise functions: the gate of a feed-forward, GELU, the soft cap of logits and the
// temperature of queries.
//
//   gate_up_proj.Apply(context, x, gate_up);  // one GEMM for both
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
// Each function is computed in float32 and rounded to the dtype. Tensors are float32, float16 or
// bfloat16. Rows may be strided; the last stride is 1. The calls do not allocate or synchronise, so
// they may be captured.
//
// Thread safety: safe for concurrent calls, unless one call writes a tensor that another call uses.
// Errors: InvalidArgument, naming the argument. Cost: one launch, which reads its input and writes
// its output at most once.

#ifndef REPRISE_RUNNER_OPS_ELEMENTWISE_H_
#define REPRISE_RUNNER_OPS_ELEMENTWISE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The gate of a gated feed-forward (Shazeer, 2020): out = activation(gate) * up. The first half of
// gate_up [num_rows, 2 * size] is the gate. out [num_rows, size] has the dtype and device of
// gate_up and must not overlap it. The activation is rounded to the dtype before the
// multiplication, as in Hugging Face's models. kClampedSwiglu clamps gate and up first and
// multiplies by up + 1.
absl::Status GateMul(Activation activation, const at::Tensor& gate_up, const at::Tensor& out);

// GELU (Hendrycks and Gimpel, 2016) for feed-forwards without a gate, in place: x = x / 2 *
// (1 + erf(x / sqrt(2))), or its tanh approximation. x [num_rows, size].
absl::Status Gelu(const at::Tensor& x, GeluForm form = GeluForm::kErf);

// Soft cap of logits as in Gemma 2: x = cap * tanh(x / cap). x [num_rows, size], in place; cap is
// positive and finite.
absl::Status Softcap(const at::Tensor& x, float cap);

// Attention temperature that grows with the position, as in Llama 4's layers without rotary
// embedding and in Ministral 3, after "Scalable-Softmax" (Nakanishi, 2025): q = q * t(position),
//
//   t(p) = 1 + attn_scale * log(1 + floor((p + position_offset) / floor_scale))
//
// Queries at positions before floor_scale - position_offset do not change. q [num_tokens,
// num_q_heads, head_dim] is updated in place. Tokens and heads may be strided, for example as views
// of a fused projection. positions [num_tokens] int32 on q's device; negative positions count as 0.
absl::Status TemperQueries(const at::Tensor& q, const at::Tensor& positions,
                           const QueryTemperature& temperature);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ELEMENTWISE_H_
