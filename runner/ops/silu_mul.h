// The gate of a SwiGLU feed-forward (Shazeer, 2020): out = silu(gate) * up, silu(x) = x / (1 +
// exp(-x)).
//
//   gate_up_proj.Apply(context, x, gate_up);  // one product for both
//   SiluMul(gate_up, activated);
//
// Computed in float32; silu is rounded to the dtype before the product, as Hugging Face's Llama
// does. Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensors are. Cost: one launch; reads 2 * size and writes size
// elements a row.

#ifndef RUNNER_OPS_SILU_MUL_H_
#define RUNNER_OPS_SILU_MUL_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace reprise {

// gate_up [num_rows, 2 * size], gate in the first half; out [num_rows, size]. float32, float16 or
// bfloat16, one dtype and device; rows may be strided. They must not overlap. Errors:
// InvalidArgument, naming the argument.
absl::Status SiluMul(const at::Tensor& gate_up, const at::Tensor& out);

}  // namespace reprise

#endif  // RUNNER_OPS_SILU_MUL_H_
