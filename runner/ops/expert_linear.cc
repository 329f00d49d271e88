#include "reprise/runner/ops/expert_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/cuda_launch.h"
#include "reprise/runner/ops/expert_linear_args.h"
#endif

namespace reprise {
namespace {

absl::Status CheckContiguous(const char* name, const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be contiguous"));
}

// Returns the pairs of each expert in ascending order.
absl::StatusOr<std::vector<std::vector<int64_t>>> PairsOfExperts(const at::Tensor& chosen,
                                                                 int64_t num_experts) {
  std::vector<std::vector<int64_t>> pairs(num_experts);
  const int64_t* const experts = chosen.const_data_ptr<int64_t>();
  for (int64_t pair = 0; pair < chosen.size(0); ++pair) {
    if (experts[pair] < 0 || experts[pair] >= num_experts) {
      return absl::OutOfRangeError(absl::StrCat("chosen must name experts: expected [0, ",
                                                num_experts, "), got ", experts[pair], " at ",
                                                pair));
    }
    pairs[experts[pair]].push_back(pair);
  }
  return pairs;
}

}  // namespace

ExpertLinear::ExpertLinear(at::Tensor weight, std::optional<at::Tensor> bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

absl::StatusOr<ExpertLinear> ExpertLinear::Create(at::Tensor weight,
                                                  std::optional<at::Tensor> bias) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("weight", weight, {"num_experts", "out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("weight", weight));
  REPRISE_RETURN_IF_ERROR(CheckContiguous("weight", weight));
  if (weight.numel() == 0) {
    return absl::InvalidArgumentError("weight must not be empty: expected positive sizes");
  }
  if (bias.has_value()) {
    REPRISE_RETURN_IF_ERROR(
        dims.Check("bias", *bias, {"num_experts", "out_features"}, weight.scalar_type()));
    REPRISE_RETURN_IF_ERROR(CheckDevice("bias", *bias, weight.device()));
    REPRISE_RETURN_IF_ERROR(CheckContiguous("bias", *bias));
  }
  return ExpertLinear(std::move(weight), std::move(bias));
}

absl::Status ExpertLinear::Apply(LinearContext& context, const at::Tensor& x,
                                 const at::Tensor& chosen, const at::Tensor& out) const {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", in_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  REPRISE_RETURN_IF_ERROR(dims.Check("chosen", chosen, {"num_pairs"}, at::kLong));
  REPRISE_RETURN_IF_ERROR(CheckDevice("chosen", chosen, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckContiguous("chosen", chosen));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {"num_pairs", out_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  const int64_t num_rows = x.size(0);
  const int64_t num_pairs = chosen.size(0);
  if (num_rows == 0 ? num_pairs != 0 : num_pairs % num_rows != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chosen must have equally many experts per row of x: expected a multiple of ",
                     num_rows, ", got ", num_pairs));
  }
  if (num_pairs == 0) return absl::OkStatus();
  const int64_t pairs_per_row = num_pairs / num_rows;
#ifdef REPRISE_WITH_CUDA
  if (weight_.is_cuda()) {
    const ExpertLinearArgs args = {.dtype = *FromScalarType(weight_.scalar_type()),
                                   .x = x.const_data_ptr(),
                                   .x_stride = x.stride(0),
                                   .weight = weight_.const_data_ptr(),
                                   .bias = bias_.has_value() ? bias_->const_data_ptr() : nullptr,
                                   .chosen = chosen.const_data_ptr<int64_t>(),
                                   .out = out.mutable_data_ptr(),
                                   .out_stride = out.stride(0),
                                   .num_pairs = static_cast<int>(num_pairs),
                                   .pairs_per_row = static_cast<int>(pairs_per_row),
                                   .num_experts = static_cast<int>(num_experts()),
                                   .out_features = static_cast<int>(out_features()),
                                   .in_features = static_cast<int>(in_features())};
    return LaunchOnCurrentStream(
        out, [&](cudaStream_t stream) { return LaunchExpertLinear(args, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::vector<int64_t>> pairs,
                           PairsOfExperts(chosen, num_experts()));
  return CatchTorch([&]() -> absl::Status {
    for (int64_t expert = 0; expert < num_experts(); ++expert) {
      if (pairs[expert].empty()) continue;
      const at::Tensor places = at::tensor(pairs[expert]);
      std::vector<int64_t> rows = pairs[expert];
      for (int64_t& row : rows) row /= pairs_per_row;
      const at::Tensor products = at::empty({places.size(0), out_features()}, weight_.options());
      const std::optional<at::Tensor> bias =
          bias_.has_value() ? std::optional(bias_->select(0, expert)) : std::nullopt;
      REPRISE_RETURN_IF_ERROR(context.Multiply(x.index_select(0, at::tensor(rows)),
                                               weight_.select(0, expert),
                                               bias.has_value() ? &*bias : nullptr, products));
      at::Tensor target = out;
      target.index_copy_(0, places, products);
    }
    return absl::OkStatus();
  });
}

absl::Status ExpertLinear::ApplyAll(LinearContext& context, const at::Tensor& x,
                                    const at::Tensor& out) const {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("x", x, {"num_rows", num_experts(), in_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("out", out, {"num_rows", num_experts(), out_features()}, weight_.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, weight_.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  if (x.size(0) == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      context.Multiply(x.transpose(0, 1), weight_, nullptr, out.transpose(0, 1)));
  if (!bias_.has_value()) return absl::OkStatus();
  return CatchTorch([&] {
    out.add_(*bias_);
    return absl::OkStatus();
  });
}

}  // namespace reprise
