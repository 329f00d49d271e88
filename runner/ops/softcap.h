// Soft cap of logits: x = cap * tanh(x / cap), as Gemma 2 has it.
//
//   weights.lm_head.Apply(step.linears(), last, step.logits());
//   Softcap(step.logits(), 30.0f);
//
// Computed in float32, rounded once. Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensor is. Cost: one launch; x is read and written.

#ifndef RUNNER_OPS_SOFTCAP_H_
#define RUNNER_OPS_SOFTCAP_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace reprise {

// x [num_rows, size] float32, float16 or bfloat16, in place; rows may be strided, within a row the
// stride is 1. cap > 0. Errors: InvalidArgument, naming the argument.
absl::Status Softcap(const at::Tensor& x, float cap);

}  // namespace reprise

#endif  // RUNNER_OPS_SOFTCAP_H_
