// GEMMs of rows with the weights of their chosen experts, in a mixture of experts: out[p] = x[row
// of p] weight[chosen[p]]^T + bias[chosen[p]].
//
//   REPRISE_ASSIGN_OR_RETURN(ExpertLinear up, ExpertLinear::Create(weight, std::nullopt));
//   // chosen [num_tokens * 2]: the two experts of each token
//   REPRISE_RETURN_IF_ERROR(up.Apply(step.linears(), x, chosen, out));
//
// On a GPU, the host does not read the chosen experts. Shapes do not depend on them, and the call
// may be captured. There are two forms:
//
//   Apply      computes only the chosen products and reads only the weights of the chosen experts.
//              On the CPU, the rows of each expert form one GEMM. On a GPU, a kernel processes up
//              to eight rows of an expert together, without tensor cores. It is memory bound if
//              there are few rows per expert, as in decode steps. Its results for a row are bitwise
//              independent of the rest of the batch.
//   ApplyAll   multiplies every row by the weights of every expert, in one batched GEMM, which uses
//              tensor cores for 16-bit dtypes. Use it on a GPU if there are many rows per expert.
//
// An ExpertLinear is a value: copies share the weight. Thread safety: see LinearContext.

#ifndef REPRISE_RUNNER_OPS_EXPERT_LINEAR_H_
#define REPRISE_RUNNER_OPS_EXPERT_LINEAR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/linear_context.h"

namespace reprise {

class ExpertLinear {
 public:
  // weight [num_experts, out_features, in_features] float32, float16 or bfloat16, contiguous; bias
  // [num_experts, out_features] of the same dtype and device, contiguous. Errors: InvalidArgument,
  // naming the argument.
  static absl::StatusOr<ExpertLinear> Create(at::Tensor weight, std::optional<at::Tensor> bias);

  // x [num_rows, in_features]; chosen [num_pairs] int64, contiguous. num_pairs is a multiple of
  // num_rows: pair p belongs to row p / (num_pairs / num_rows). out [num_pairs, out_features]. x
  // and out have the weight's dtype and device; their rows may be strided; they must not overlap.
  // Accumulates in float32. An expert outside [0, num_experts) is an OutOfRange error on the CPU,
  // before anything is written; on a GPU, its row of `out` becomes zero. Other errors:
  // InvalidArgument, naming the argument.
  absl::Status Apply(LinearContext& context, const at::Tensor& x, const at::Tensor& chosen,
                     const at::Tensor& out) const;

  // out[r, e] = round(x[r, e] weight[e]^T) + bias[e]. x [num_rows, num_experts, in_features];
  // stride 0 passes the same x to all experts. out [num_rows, num_experts, out_features]. Strides
  // and errors: see HeadLinear::Apply().
  absl::Status ApplyAll(LinearContext& context, const at::Tensor& x, const at::Tensor& out) const;

  int64_t num_experts() const { return weight_.size(0); }
  int64_t out_features() const { return weight_.size(1); }
  int64_t in_features() const { return weight_.size(2); }
  const at::Tensor& weight() const { return weight_; }
  const std::optional<at::Tensor>& bias() const { return bias_; }

 private:
  ExpertLinear(at::Tensor weight, std::optional<at::Tensor> bias);

  at::Tensor weight_;               // [num_experts, out_features, in_features]
  std::optional<at::Tensor> bias_;  // [num_experts, out_features]
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_EXPERT_LINEAR_H_
