// Attention temperature that grows with the position: q = q * t(position),
//
//   t(p) = 1 + attn_scale * log(1 + floor((p + 1) / floor_scale))
//
// of Llama 4's layers without rotation, after "Scalable-Softmax" (Nakanishi, 2025). Queries before
// position floor_scale - 1 stay as they are.
//
//   TemperQueries(q, step.positions(), {.attn_scale = 0.1f, .floor_scale = 8192});
//
// Computed in float32, rounded once. Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensors are. Cost: one launch; q is read and written.

#ifndef RUNNER_OPS_QUERY_TEMPERATURE_H_
#define RUNNER_OPS_QUERY_TEMPERATURE_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "runner/ops/temperature.h"

namespace reprise {

// q [num_tokens, num_q_heads, head_dim] float32, float16 or bfloat16, strided as a view of a fused
// projection is, the last stride 1; in place. positions [num_tokens] int32; a negative one counts
// as 0. Errors: InvalidArgument, naming the argument.
absl::Status TemperQueries(const at::Tensor& q, const at::Tensor& positions,
                           const QueryTemperature& temperature);

}  // namespace reprise

#endif  // RUNNER_OPS_QUERY_TEMPERATURE_H_
