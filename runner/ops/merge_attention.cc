#include "reprise/runner/ops/merge_attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/token_view.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

// More parts than one launch supports are merged in groups of kMaxMergeParts, whose results are
// merged in a last launch.
constexpr size_t kMaxParts = size_t{kMaxMergeParts} * kMaxMergeParts;

absl::Status CheckPart(const at::Tensor& part, const at::Tensor& lse, const at::Tensor& first,
                       const at::Tensor& first_lse, ShapeChecker& dims) {
  REPRISE_RETURN_IF_ERROR(
      dims.Check("outs", part, {"num_tokens", "num_heads", "head_dim"}, first.scalar_type()));
  REPRISE_RETURN_IF_ERROR(dims.Check("lses", lse, {"num_tokens", "num_heads"}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckDevice("outs", part, first.device()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("lses", lse, first.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("outs", part));
  if (part.strides() == first.strides() && lse.strides() == first_lse.strides()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("outs and lses must have the same strides in all parts");
}

absl::Status Check(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                   const at::Tensor& out, const at::Tensor& lse) {
  if (outs.empty() || outs.size() > kMaxParts || lses.size() != outs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("outs and lses must have equal sizes: expected 1 to ", kMaxParts,
                     " parts with one lse each, got ", outs.size(), " and ", lses.size()));
  }
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_tokens", "num_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("out", out));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  for (size_t i = 0; i < outs.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(CheckPart(outs[i], lses[i], outs[0], lses[0], dims));
  }
  REPRISE_RETURN_IF_ERROR(CheckActivationType("outs", outs[0]));
  REPRISE_RETURN_IF_ERROR(CheckDevice("outs", outs[0], out.device()));
  if (!lse.defined()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(dims.Check("lse", lse, {"num_tokens", "num_heads"}, at::kFloat));
  return CheckDevice("lse", lse, out.device());
}

TokenView ViewOf(const at::Tensor& heads) {
  return {.data = heads.mutable_data_ptr(),
          .dtype = *FromScalarType(heads.scalar_type()),
          .token_stride = heads.stride(0),
          .head_stride = heads.stride(1)};
}

// REQUIRES: Check() returns OK; at most kMaxMergeParts parts.
absl::Status MergeOnce(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                       const at::Tensor& out, const at::Tensor& lse) {
  MergeStatesArgs args = {
      .num_parts = static_cast<int>(outs.size()),
      .part = ViewOf(outs[0]),
      .part_lse_view = {.token_stride = lses[0].stride(0), .head_stride = lses[0].stride(1)},
      .out = ViewOf(out),
      .num_tokens = static_cast<int>(out.size(0)),
      .num_heads = static_cast<int>(out.size(1)),
      .head_dim = static_cast<int>(out.size(2))};
  for (size_t i = 0; i < outs.size(); ++i) {
    args.part_out[i] = outs[i].const_data_ptr();
    args.part_lse[i] = lses[i].const_data_ptr<float>();
  }
  if (lse.defined()) {
    args.lse = {.data = lse.mutable_data_ptr<float>(),
                .token_stride = lse.stride(0),
                .head_stride = lse.stride(1)};
  }
#ifdef REPRISE_WITH_CUDA
  if (out.is_cuda()) {
    return LaunchOnCurrentStream(
        out, [&](cudaStream_t stream) { return LaunchMergeStates(args, stream); });
  }
#endif
  return MergeStates(args);
}

}  // namespace

absl::Status MergeAttention(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                            const at::Tensor& out, const at::Tensor& lse) {
  REPRISE_RETURN_IF_ERROR(Check(outs, lses, out, lse));
  if (out.numel() == 0) return absl::OkStatus();
  if (outs.size() <= kMaxMergeParts) return MergeOnce(outs, lses, out, lse);
  return CatchTorch([&]() -> absl::Status {
    std::vector<at::Tensor> group_outs, group_lses;
    for (size_t first = 0; first < outs.size(); first += kMaxMergeParts) {
      group_outs.push_back(at::empty(out.sizes(), out.options().dtype(at::kFloat)));
      group_lses.push_back(at::empty(lses[0].sizes(), lses[0].options()));
      REPRISE_RETURN_IF_ERROR(MergeOnce(outs.subspan(first, kMaxMergeParts),
                                        lses.subspan(first, kMaxMergeParts), group_outs.back(),
                                        group_lses.back()));
    }
    return MergeOnce(group_outs, group_lses, out, lse);
  });
}

}  // namespace reprise
