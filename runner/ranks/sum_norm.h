// Sums a sublayer's output over ranks, adds the sum to the residual stream, and normalises the
// result.
//
//   REPRISE_RETURN_IF_ERROR(down.Apply(step.linears(), gated, summands));
//   REPRISE_RETURN_IF_ERROR(SumAddRmsNorm(collectives, step.linears(), summands, hidden, next_norm,
//                                         1e-5f, normed));
//
// The result is bitwise identical to SumOverRanks(delta) followed by AddRmsNorm(delta, residual,
// weight, eps, out, form). On GPUs whose ranks push their sums (Collectives::PushAllReduce()), the
// norm's kernel also computes the sum if it supports the arguments (CanSumInNorm()): each row's CTA
// adds the summands of all ranks as they arrive. The sum is then never stored, which saves a
// kernel, and `delta` keeps this rank's summands. Otherwise, for example if `out` is `delta`, two
// kernels are used.
//
// Every rank must make the same calls with the same sizes. May be captured if the Collectives can
// be captured.
// Thread safety: one thread per Collectives. Errors: as SumOverRanks() and AddRmsNorm().

#ifndef REPRISE_RUNNER_RANKS_SUM_NORM_H_
#define REPRISE_RUNNER_RANKS_SUM_NORM_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// Computes residual += the sum of `delta` over ranks, each rounded to the dtype, and out =
// RmsNorm(residual). delta: contiguous, with a dtype that AllReduce() and RmsNorm() support;
// [num_rows, size], as residual and out; weight: [size]. The contents of `delta` are unspecified
// afterwards. `collectives`: null for one rank. `context`: the context of the GEMMs that computed
// `delta`, as in SumOverRanks().
absl::Status SumAddRmsNorm(Collectives* collectives, const LinearContext& context,
                           const at::Tensor& delta, const at::Tensor& residual,
                           const at::Tensor& weight, float eps, const at::Tensor& out,
                           NormWeight form = NormWeight::kScale);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_SUM_NORM_H_
