// A GEMM per head, with one weight per head: out[t, h] = x[t, h] weight[h]^T.
//
//   // Absorbed MLA: projects queries into the latent space.
//   REPRISE_ASSIGN_OR_RETURN(HeadLinear absorb, HeadLinear::Create(weight));
//   REPRISE_RETURN_IF_ERROR(absorb.Apply(step.linears(), q_nope, q_latent));
//
// All heads are one batched GEMM through the same context as Linear (runner/ops/linear.h). Its
// algorithm is chosen and timed in the same way; with several heads, from the library's candidates
// only. The call may be captured. A HeadLinear is a value: copies share the weight.

#ifndef REPRISE_RUNNER_OPS_HEAD_LINEAR_H_
#define REPRISE_RUNNER_OPS_HEAD_LINEAR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

class HeadLinear {
 public:
  // weight [num_heads, out_features, in_features] float32, float16 or bfloat16. Heads and rows may
  // be strided; the last stride is 1. Errors: InvalidArgument, naming the argument.
  static absl::StatusOr<HeadLinear> Create(at::Tensor weight);

  // x [num_tokens, num_heads, in_features] and out [num_tokens, num_heads, out_features] have the
  // weight's dtype and device. Tokens and heads may be strided. x and out must not overlap. The
  // call may be captured. Errors: InvalidArgument, naming the argument; Unimplemented if no
  // algorithm supports these strides or alignments.
  absl::Status Apply(LinearContext& context, const at::Tensor& x, const at::Tensor& out) const;

  int64_t num_heads() const { return weight_.size(0); }
  int64_t out_features() const { return weight_.size(1); }
  int64_t in_features() const { return weight_.size(2); }
  const at::Tensor& weight() const { return weight_; }

 private:
  explicit HeadLinear(at::Tensor weight);

  at::Tensor weight_;  // [num_heads, out_features, in_features]
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_HEAD_LINEAR_H_
