// GELU by its definition (Hendrycks and Gimpel, 2016): x = x / 2 * (1 + erf(x / sqrt(2))).
//
//   weights.up.Apply(step.linears(), x, inner);
//   Gelu(inner);
//   weights.down.Apply(step.linears(), inner, out);
//
// The activation of feed-forwards without a gate; those with one: gate_mul.h. Computed in float32,
// rounded once. Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensor is. Cost: one launch; x is read and written.

#ifndef RUNNER_OPS_GELU_H_
#define RUNNER_OPS_GELU_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace reprise {

// x [num_rows, size] float32, float16 or bfloat16, in place; rows may be strided, within a row the
// stride is 1. Errors: InvalidArgument, naming the argument.
absl::Status Gelu(const at::Tensor& x);

}  // namespace reprise

#endif  // RUNNER_OPS_GELU_H_
