#include "reprise/runner/ops/head_linear.h"

#include <utility>

#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/activation_type.h"

namespace reprise {

HeadLinear::HeadLinear(at::Tensor weight) : weight_(std::move(weight)) {}

absl::StatusOr<HeadLinear> HeadLinear::Create(at::Tensor weight) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("weight", weight, {"num_heads", "out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("weight", weight));
  if (weight.numel() == 0) {
    return absl::InvalidArgumentError("weight must not be empty: expected positive sizes");
  }
  return HeadLinear(std::move(weight));
}

absl::Status HeadLinear::Apply(LinearContext& context, const at::Tensor& x,
                               const at::Tensor& out) const {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("x", x, {"num_tokens", num_heads(), in_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {"num_tokens", num_heads(), out_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  if (x.size(0) == 0) return absl::OkStatus();
  return context.Multiply(x.transpose(0, 1), weight_, nullptr, out.transpose(0, 1));
}

}  // namespace reprise
