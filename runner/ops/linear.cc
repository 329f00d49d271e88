#include "runner/ops/linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#include "runner/ops/host_linear_context.h"
#ifdef REPRISE_WITH_CUDA
#include "runner/ops/cublaslt_linear_context.h"
#endif

namespace reprise {

absl::StatusOr<std::unique_ptr<LinearContext>> MakeLinearContext(
    c10::Device device, const LinearContextOptions& options) {
  if (options.workspace_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "workspace_bytes must not be negative: expected >= 0, got ", options.workspace_bytes));
  }
  if (options.num_timed_candidates < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_timed_candidates must be positive: expected >= 1, got ",
                     options.num_timed_candidates));
  }
  if (device.is_cpu()) {
    return MakeHostLinearContext(options.deterministic ? HostRows::kOneByOne : HostRows::kTogether);
  }
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    return MakeCublasLtLinearContext(device, {.workspace_bytes = options.workspace_bytes,
                                              .num_candidates = options.num_timed_candidates,
                                              .deterministic = options.deterministic});
  }
#endif
  return absl::UnimplementedError(
      absl::StrCat("device has no matrix products in this build: expected cpu"
#ifdef REPRISE_WITH_CUDA
                   " or cuda"
#endif
                   ", got ",
                   device.str()));
}

Linear::Linear(at::Tensor weight, std::optional<at::Tensor> bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

absl::StatusOr<Linear> Linear::Create(at::Tensor weight, std::optional<at::Tensor> bias) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("weight", weight, {"out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("weight", weight));
  if (weight.numel() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight must not be empty: expected positive sizes, got [", weight.size(0),
                     ", ", weight.size(1), "]"));
  }
  if (bias.has_value()) {
    REPRISE_RETURN_IF_ERROR(dims.Check("bias", *bias, {"out_features"}, weight.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice("bias", *bias, weight.device()));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("bias", *bias));
  }
  return Linear(std::move(weight), std::move(bias));
}

absl::Status Linear::Apply(LinearContext& context, const at::Tensor& x,
                           const at::Tensor& out) const {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", in_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_rows", out_features()}));
  if (bias_.has_value()) {
    REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {weight_.scalar_type()}));
  } else {
    REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {weight_.scalar_type(), at::kFloat}));
  }
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  if (x.size(0) == 0) return absl::OkStatus();
  return context.Multiply(x, weight_, bias_.has_value() ? &*bias_ : nullptr, out);
}

}  // namespace reprise
