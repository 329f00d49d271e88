// Matrix products of rows with the weights of the experts that were chosen for them, in a mixture
// of experts: out[p] = x[row of p] weight[chosen[p]]^T + bias[chosen[p]].
//
//   REPRISE_ASSIGN_OR_RETURN(ExpertLinear up, ExpertLinear::Create(weight, std::nullopt));
//   // chosen [num_tokens * 2]: the two experts of each token
//   REPRISE_RETURN_IF_ERROR(up.Apply(step.linears(), x, chosen, out));
//
// Which experts were chosen is known on the device alone: shapes are fixed, and the call may be
// captured. There are two forms:
//
//   Apply      computes the chosen products only and reads the weights of the chosen experts only.
//              On the CPU each expert's rows are one product. On a GPU a kernel takes up to eight
//              rows of an expert at once, without tensor cores: it serves decode steps at the speed
//              of memory, as long as there are few rows an expert. A row's bits do not depend on
//              the rest of the batch.
//   ApplyAll   multiplies every row by the weights of every expert, in one batch of products with
//              tensor cores. For many rows an expert, on a GPU.
//
// An ExpertLinear is a value: copies share the weight. Thread safety: as LinearContext.

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

  // x [num_rows, in_features]; chosen [num_pairs] int64, contiguous, num_pairs a multiple of
  // num_rows: pair p is of row p / (num_pairs / num_rows). out [num_pairs, out_features]. x and out
  // are of the weight's dtype and device; rows may be strided; they must not overlap. Float32
  // accumulation. An expert outside [0, num_experts) is an OutOfRange error on the CPU, before
  // anything is written; on a GPU its row of `out` becomes zero. Other errors: InvalidArgument,
  // naming the argument.
  absl::Status Apply(LinearContext& context, const at::Tensor& x, const at::Tensor& chosen,
                     const at::Tensor& out) const;

  // out[r, e] = round(x[r, e] weight[e]^T) + bias[e]. x [num_rows, num_experts, in_features], which
  // may be the same for all experts (stride 0); out [num_rows, num_experts, out_features]. Strides
  // as in HeadLinear::Apply(). Errors: as there.
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
