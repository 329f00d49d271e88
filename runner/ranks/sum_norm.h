// The sum of a sublayer's summands over ranks, added to the residual stream and normalised.
//
//   REPRISE_RETURN_IF_ERROR(down.Apply(step.linears(), gated, summands));
//   REPRISE_RETURN_IF_ERROR(SumAddRmsNorm(collectives, step.linears(), summands, hidden, next_norm,
//                                         1e-5f, normed));
//
// It is SumOverRanks(delta), then AddRmsNorm(delta, residual, weight, eps, out, form), to the bit. On GPUs
// whose ranks push their sums (Collectives::PushedSum()) the norm's kernel does the sum, too: each
// row's CTA adds the summands of all ranks as they come, so the sum is never stored, and a step has one
// kernel fewer. `delta` then keeps this rank's summands. `out` may be `delta`, but then the two are
// apart.
//
// Every rank makes the same calls with the same sizes. May be captured as far as Collectives may.
// Thread safety: one thread a Collectives. Errors: those of SumOverRanks() and AddRmsNorm().

#ifndef REPRISE_RUNNER_RANKS_SUM_NORM_H_
#define REPRISE_RUNNER_RANKS_SUM_NORM_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// residual += the sum over ranks of `delta`, each rounded to the dtype; out = RmsNorm(residual).
// delta: contiguous, of a dtype of AllReduce() and of RmsNorm(); [num_rows, size] as residual and out; weight [size].
// `delta` is of any values afterwards. `collectives` null: one rank. `context`: of the products that made
// `delta`, as SumOverRanks() wants it.
absl::Status SumAddRmsNorm(Collectives* collectives, const LinearContext& context,
                           const at::Tensor& delta, const at::Tensor& residual,
                           const at::Tensor& weight, float eps, const at::Tensor& out,
                           NormWeight form = NormWeight::kScale);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SUM_NORM_H_
