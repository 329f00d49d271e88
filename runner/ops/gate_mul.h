// The gate of a gated feed-forward (Shazeer, 2020): out = activation(gate) * up.
//
//   gate_up_proj.Apply(context, x, gate_up);  // one product for both
//   GateMul(Activation::kSilu, gate_up, activated);
//
// Computed in float32; the activation is rounded to the dtype before the product, as Hugging Face's
// models do. Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensors are. Cost: one launch; reads 2 * size and writes size
// elements a row.

#ifndef RUNNER_OPS_GATE_MUL_H_
#define RUNNER_OPS_GATE_MUL_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "runner/ops/activation.h"

namespace reprise {

// gate_up [num_rows, 2 * size], gate in the first half; out [num_rows, size]. float32, float16 or
// bfloat16, one dtype and device; rows may be strided. They must not overlap. Errors:
// InvalidArgument, naming the argument.
absl::Status GateMul(Activation activation, const at::Tensor& gate_up, const at::Tensor& out);

}  // namespace reprise

#endif  // RUNNER_OPS_GATE_MUL_H_
