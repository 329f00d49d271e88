#include "reprise/runner/ops/linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/activation_type.h"
#include "reprise/runner/ops/elementwise.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cublaslt_linear_context.h"
#endif

namespace reprise {
namespace {

// Number of consecutive in_features that share a scale, unless a row has a single scale.
constexpr int64_t kScaledFeatures = 128;

at::Tensor DequantisedWeight(const at::Tensor& weight, const at::Tensor& scales,
                             at::ScalarType dtype) {
  const at::ScalarType exact = dtype == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor of_columns = scales.to(exact);
  if (scales.size(1) > 1) {
    of_columns = of_columns.repeat_interleave(kScaledFeatures, 1).narrow(1, 0, weight.size(1));
  }
  return weight.to(exact).mul_(of_columns).to(dtype);
}

absl::Status CheckIsNotEmpty(const at::Tensor& weight) {
  if (weight.numel() > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight must not be empty: expected positive sizes, got [", weight.size(0), ", ",
                   weight.size(1), "]"));
}

// With kOneByOne, a row's results are bitwise independent of the rest of the batch.
enum class HostRows { kTogether, kOneByOne };

// GEMMs on the CPU, through LibTorch: MKL for float32, oneDNN for bfloat16.
class HostLinearContext : public LinearContext {
 public:
  explicit HostLinearContext(HostRows rows) : rows_(rows) {}

  absl::Status Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                        const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
    return CatchTorch([&]() -> absl::Status {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      MultiplyAll(x, weight, bias, out);
      return absl::OkStatus();
    });
  }

  absl::Status MultiplyScaled(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& scales, const at::Tensor* bias,
                              const at::Tensor& out) override {
    REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
    return CatchTorch([&]() -> absl::Status {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      for (int64_t first = 0; first < weight.size(0); first += kDequantisedRows) {
        const int64_t num_rows = std::min(kDequantisedRows, weight.size(0) - first);
        const at::Tensor part = DequantisedWeight(
            weight.narrow(0, first, num_rows), scales.narrow(0, first, num_rows), x.scalar_type());
        std::optional<at::Tensor> part_bias;
        if (bias != nullptr) part_bias = bias->narrow(0, first, num_rows);
        MultiplyAll(x, part, part_bias.has_value() ? &*part_bias : nullptr,
                    out.narrow(1, first, num_rows));
      }
      return absl::OkStatus();
    });
  }

  // The CPU has no choice of algorithms.
  void SetTiming(LinearTiming) override {}
  bool is_deterministic() const override { return rows_ == HostRows::kOneByOne; }
  std::vector<LinearChoice> Choices() const override { return {}; }

 private:
  // Number of rows of an 8-bit weight that are held in x's dtype at a time.
  static constexpr int64_t kDequantisedRows = 1024;

  void MultiplyAll(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                   const at::Tensor& out) const {
    const int64_t rows = weight.dim() - 2;  // the dimension of the rows
    if (rows_ == HostRows::kTogether) {
      MultiplyRows(x, weight, bias, out);
      return;
    }
    for (int64_t row = 0; row < x.size(rows); ++row) {
      MultiplyRows(x.narrow(rows, row, 1), weight, bias, out.narrow(rows, row, 1));
    }
  }

  static void MultiplyRows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* bias,
                           at::Tensor out) {
    if (weight.dim() == 3) {
      out.copy_(at::bmm(x, weight.transpose(1, 2)));
    } else if (out.scalar_type() != x.scalar_type()) {
      // LibTorch has no CPU GEMM of 16-bit matrices with a float32 result.
      out.copy_(at::mm(x, weight.t()));
    } else if (bias != nullptr) {
      at::addmm_out(out, *bias, x, weight.t());
    } else {
      at::mm_out(out, x, weight.t());
    }
  }

  HostRows rows_;
};

}  // namespace

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
    return std::make_unique<HostLinearContext>(options.deterministic ? HostRows::kOneByOne
                                                                     : HostRows::kTogether);
  }
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    return MakeCublasLtLinearContext(device, {.workspace_bytes = options.workspace_bytes,
                                              .num_candidates = options.num_timed_candidates,
                                              .deterministic = options.deterministic,
                                              .choices_file = options.choices_file});
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

Linear::Linear(at::Tensor weight, std::optional<at::Tensor> scales, std::optional<at::Tensor> bias)
    : weight_(std::move(weight)), scales_(std::move(scales)), bias_(std::move(bias)) {}

absl::StatusOr<Linear> Linear::Create(at::Tensor weight, std::optional<at::Tensor> bias) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("weight", weight, {"out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckIsNotEmpty(weight));
  if (bias.has_value()) {
    REPRISE_RETURN_IF_ERROR(dims.Check("bias", *bias, {"out_features"}, weight.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice("bias", *bias, weight.device()));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("bias", *bias));
  }
  return Linear(std::move(weight), std::nullopt, std::move(bias));
}

absl::StatusOr<Linear> Linear::CreateScaled(at::Tensor weight, at::Tensor scales,
                                            std::optional<at::Tensor> bias) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("weight", weight, {"out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("weight", weight, {at::ScalarType::Float8_e4m3fn}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckIsNotEmpty(weight));
  const int64_t num_groups = (weight.size(1) + kScaledFeatures - 1) / kScaledFeatures;
  REPRISE_RETURN_IF_ERROR(dims.Check("scales", scales, {"out_features", "num_groups"}, at::kFloat));
  if (scales.size(1) != 1 && scales.size(1) != num_groups) {
    return absl::InvalidArgumentError(absl::StrCat("scales must have one column, or one for every ",
                                                   kScaledFeatures, " in_features: expected 1 or ",
                                                   num_groups, ", got ", scales.size(1)));
  }
  REPRISE_RETURN_IF_ERROR(CheckDevice("scales", scales, weight.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("scales", scales));
  if (bias.has_value()) {
    REPRISE_RETURN_IF_ERROR(dims.Check("bias", *bias, {"out_features"}));
    REPRISE_RETURN_IF_ERROR(CheckActivationType("bias", *bias));
    REPRISE_RETURN_IF_ERROR(CheckDevice("bias", *bias, weight.device()));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("bias", *bias));
  }
  return Linear(std::move(weight), std::move(scales), std::move(bias));
}

at::Tensor Linear::Dequantised(at::ScalarType dtype) const {
  return scales_.has_value() ? DequantisedWeight(weight_, *scales_, dtype)
                             : weight_.to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

absl::Status Linear::Check(const at::Tensor& x, const at::Tensor& out) const {
  ShapeChecker dims;
  if (scales_.has_value()) {
    REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", in_features()}));
    REPRISE_RETURN_IF_ERROR(CheckActivationType("x", x));
    if (bias_.has_value()) {
      REPRISE_RETURN_IF_ERROR(CheckDType("x", x, {bias_->scalar_type()}));
    }
  } else {
    REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", in_features()}, weight_.scalar_type()));
  }
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_rows", out_features()}));
  if (bias_.has_value()) {
    REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {x.scalar_type()}));
  } else {
    REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {x.scalar_type(), at::kFloat}));
  }
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  return CheckLastStrideIsOne("out", out);
}

absl::Status Linear::Apply(LinearContext& context, const at::Tensor& x,
                           const at::Tensor& out) const {
  REPRISE_RETURN_IF_ERROR(Check(x, out));
  if (x.size(0) == 0) return absl::OkStatus();
  const at::Tensor* const bias = bias_.has_value() ? &*bias_ : nullptr;
  return scales_.has_value() ? context.MultiplyScaled(x, weight_, *scales_, bias, out)
                             : context.Multiply(x, weight_, bias, out);
}

absl::Status Linear::ApplyGated(LinearContext& context, Activation activation, const at::Tensor& x,
                                const at::Tensor& gate_up, const at::Tensor& out) const {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("gate_up", gate_up, {"num_rows", out_features()}, x.scalar_type()));
  REPRISE_RETURN_IF_ERROR(Check(x, gate_up));
  if (out_features() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight must have equally many gate and up rows: expected an even number, got ",
        out_features()));
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {"num_rows", out_features() / 2}, x.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  if (x.size(0) == 0) return absl::OkStatus();
  const at::Tensor* const bias = bias_.has_value() ? &*bias_ : nullptr;
  if (scales_.has_value()) {
    REPRISE_RETURN_IF_ERROR(context.MultiplyScaled(x, weight_, *scales_, bias, gate_up));
    return GateMul(activation, gate_up, out);
  }
  return context.MultiplyGated(activation, x, weight_, bias, gate_up, out);
}

}  // namespace reprise
