// torch.ops.reprise.merge_states: merges partial results of attention
// (attention/merge/merge_states.h). See docs/operators.md.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/torch_ops/operator_call.h"
#include "reprise/attention/torch_ops/status_launch.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

struct Parts {
  std::vector<at::Tensor> outs, lses;
  std::optional<at::Tensor> sinks;
};

Parts ReadParts(OperatorCall& call) {
  Parts parts;
  parts.outs = call.Tensors("outs");
  parts.lses = call.Tensors("lses");
  parts.sinks = call.MaybeTensor("sinks");
  return parts;
}

TokenView ViewOf(const at::Tensor& tensor) {
  return {.data = const_cast<void*>(tensor.const_data_ptr()),
          .dtype = *FromScalarType(tensor.scalar_type()),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

LseView LseViewOf(const at::Tensor& lse) {
  return {.data = const_cast<float*>(lse.const_data_ptr<float>()),
          .token_stride = lse.stride(0),
          .head_stride = lse.stride(1)};
}

// A launch merges at most kMaxMergeParts parts. More parts are merged in groups of that size, and
// then the results of the groups are merged.
constexpr size_t kMaxParts = size_t{kMaxMergeParts} * kMaxMergeParts;

absl::Status CheckLists(const Parts& parts) {
  if (!parts.outs.empty() && parts.outs.size() == parts.lses.size() &&
      parts.outs.size() <= kMaxParts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("outs and lses must have equal lengths from 1 to ",
                                                 kMaxParts, ": got ", parts.outs.size(), " and ",
                                                 parts.lses.size()));
}

// Checks that `part` has the shape, dtype, strides and device of the first part.
absl::Status CheckLike(const char* list, const at::Tensor& first, const at::Tensor& part) {
  REPRISE_RETURN_IF_ERROR(CheckDType(list, part, {first.scalar_type()}));
  REPRISE_RETURN_IF_ERROR(CheckDevice(list, part, first.device()));
  if (part.sizes() == first.sizes() && part.strides() == first.strides()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      list, " must have equal shapes and strides: expected the shape and strides of the first"));
}

absl::StatusOr<MergeStatesArgs> MakeArgs(const Parts& parts, const at::Tensor& out,
                                         const std::optional<at::Tensor>& lse) {
  REPRISE_RETURN_IF_ERROR(CheckLists(parts));
  ShapeChecker dims;
  const at::Tensor& first = parts.outs[0];
  REPRISE_RETURN_IF_ERROR(dims.Check("outs", first, {"num_tokens", "num_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("outs", first, {at::kFloat, at::kHalf, at::kBFloat16}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("outs", first));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("lses", parts.lses[0], {"num_tokens", "num_heads"}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckDevice("lses", parts.lses[0], first.device()));
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_tokens", "num_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("out", out, {at::kFloat, at::kHalf, at::kBFloat16}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, first.device()));
  MergeStatesArgs args = {.num_parts = static_cast<int>(parts.outs.size()),
                          .part = ViewOf(first),
                          .part_lse_view = LseViewOf(parts.lses[0]),
                          .out = ViewOf(out),
                          .num_tokens = static_cast<int>(first.size(0)),
                          .num_heads = static_cast<int>(first.size(1)),
                          .head_dim = static_cast<int>(first.size(2))};
  for (int i = 0; i < args.num_parts; ++i) {
    REPRISE_RETURN_IF_ERROR(CheckLike("outs", first, parts.outs[i]));
    REPRISE_RETURN_IF_ERROR(CheckLike("lses", parts.lses[0], parts.lses[i]));
    args.part_out[i] = parts.outs[i].const_data_ptr();
    args.part_lse[i] = parts.lses[i].const_data_ptr<float>();
  }
  if (lse) {
    REPRISE_RETURN_IF_ERROR(dims.Check("lse", *lse, {"num_tokens", "num_heads"}, at::kFloat));
    REPRISE_RETURN_IF_ERROR(CheckDevice("lse", *lse, first.device()));
    args.lse = LseViewOf(*lse);
  }
  if (parts.sinks) {
    REPRISE_RETURN_IF_ERROR(dims.Check("sinks", *parts.sinks, {"num_heads"}, at::kFloat));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("sinks", *parts.sinks));
    REPRISE_RETURN_IF_ERROR(CheckDevice("sinks", *parts.sinks, first.device()));
    args.sinks = parts.sinks->const_data_ptr<float>();
  }
  return args;
}

absl::Status MergeOnce(const Parts& parts, const at::Tensor& out,
                       const std::optional<at::Tensor>& lse) {
  REPRISE_ASSIGN_OR_RETURN(const MergeStatesArgs args, MakeArgs(parts, out, lse));
  if (out.is_cpu()) return MergeStates(args);
  return LaunchOn(out.device(), "merge_states", [&]([[maybe_unused]] CUstream_st* stream) {
#ifdef REPRISE_WITH_CUDA
    return LaunchMergeStates(args, stream);
#else
    return absl::OkStatus();
#endif
  });
}

// Merges each group of parts into a newly allocated float32 result.
absl::StatusOr<Parts> MergeGroups(const Parts& parts) {
  Parts groups = {.outs = {}, .lses = {}, .sinks = parts.sinks};
  for (size_t first = 0; first < parts.outs.size(); first += kMaxMergeParts) {
    const size_t end = std::min(first + kMaxMergeParts, parts.outs.size());
    const Parts group = {.outs = {parts.outs.begin() + first, parts.outs.begin() + end},
                         .lses = {parts.lses.begin() + first, parts.lses.begin() + end},
                         .sinks = {}};
    const auto options = parts.outs[0].options().dtype(at::kFloat);
    // MergeOnce() checks the parts within a group. This check compares the first part of each
    // group with the first part of the list.
    REPRISE_RETURN_IF_ERROR(CheckLike("outs", parts.outs[0], group.outs[0]));
    groups.outs.push_back(at::empty(parts.outs[0].sizes(), options));
    groups.lses.push_back(at::empty(parts.lses[0].sizes(), options));
    REPRISE_RETURN_IF_ERROR(MergeOnce(group, groups.outs.back(), groups.lses.back()));
  }
  return groups;
}

absl::Status Merge(const Parts& parts, const at::Tensor& out,
                   const std::optional<at::Tensor>& lse) {
  REPRISE_RETURN_IF_ERROR(CheckLists(parts));
  if (parts.outs.size() <= kMaxMergeParts) return MergeOnce(parts, out, lse);
  REPRISE_ASSIGN_OR_RETURN(const Parts groups, MergeGroups(parts));
  return MergeOnce(groups, out, lse);
}

absl::Status MergeStatesOp(OperatorCall& call) {
  const Parts parts = ReadParts(call);
  REPRISE_RETURN_IF_ERROR(CheckLists(parts));
  const at::Tensor out = at::empty(parts.outs[0].sizes(), parts.outs[0].options());
  const at::Tensor lse = at::empty(parts.lses[0].sizes(), parts.lses[0].options());
  REPRISE_RETURN_IF_ERROR(Merge(parts, out, lse));
  call.Return({out, lse});
  return absl::OkStatus();
}

absl::Status TraceMergeStates(OperatorCall& call) {
  const Parts parts = ReadParts(call);
  REPRISE_RETURN_IF_ERROR(CheckLists(parts));
  const auto like = [](const at::Tensor& tensor) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  };
  call.Return({like(parts.outs[0]), like(parts.lses[0])});
  return absl::OkStatus();
}

absl::Status MergeStatesOutOp(OperatorCall& call) {
  const Parts parts = ReadParts(call);
  const at::Tensor out = call.Tensor("out");
  const std::optional<at::Tensor> lse = call.MaybeTensor("lse");
  REPRISE_RETURN_IF_ERROR(Merge(parts, out, lse));
  call.Return({out});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "merge_states(Tensor[] outs, Tensor[] lses, *, Tensor? sinks=None) -> "
                 "(Tensor out, Tensor lse)",
                 MergeStatesOp, TraceMergeStates);
  DefineOperator(library,
                 "merge_states.out(Tensor[] outs, Tensor[] lses, *, Tensor? sinks=None, "
                 "Tensor(a!) out, Tensor(b!)? lse=None) -> Tensor(a!)",
                 MergeStatesOutOp);
}

}  // namespace reprise
