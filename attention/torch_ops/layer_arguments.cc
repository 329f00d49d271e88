#include "reprise/attention/torch_ops/layer_arguments.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/attention/torch_ops/kv_tensors.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::StatusOr<int> ToInt(const char* argument, int64_t value) {
  if (value >= std::numeric_limits<int>::min() && value <= std::numeric_limits<int>::max()) {
    return static_cast<int>(value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " is out of range: expected a 32-bit number, got ", value));
}

// Returns the data of a dense [num_q_heads] float32 tensor.
absl::StatusOr<const float*> PerHead(const char* argument, const std::optional<at::Tensor>& tensor,
                                     const LayerHeads& heads, at::Device device) {
  if (!tensor) return nullptr;
  ShapeChecker dims;
  dims.Bind("num_q_heads", heads.num_q_heads);
  REPRISE_RETURN_IF_ERROR(dims.Check(argument, *tensor, {"num_q_heads"}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(argument, *tensor));
  REPRISE_RETURN_IF_ERROR(CheckDevice(argument, *tensor, device));
  return tensor->const_data_ptr<float>();
}

// Sets the slopes: [num_q_heads], or [num_tables, num_q_heads] with any stride between tables.
absl::Status TakeSlopes(const std::optional<at::Tensor>& slopes, const LayerHeads& heads,
                        at::Device device, AttentionParams& params) {
  if (!slopes || slopes->dim() != 2) {
    REPRISE_ASSIGN_OR_RETURN(params.alibi_slopes, PerHead("alibi_slopes", slopes, heads, device));
    return absl::OkStatus();
  }
  ShapeChecker dims;
  dims.Bind("num_q_heads", heads.num_q_heads);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("alibi_slopes", *slopes, {AtLeast(heads.num_tables), "num_q_heads"}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("alibi_slopes", *slopes));
  REPRISE_RETURN_IF_ERROR(CheckDevice("alibi_slopes", *slopes, device));
  params.alibi_slopes = slopes->const_data_ptr<float>();
  if (slopes->size(0) > 1) params.alibi_row_stride = slopes->stride(0);
  return absl::OkStatus();
}

absl::StatusOr<BlockSparseParams> ToBlockSparse(const std::vector<int64_t>& numbers) {
  BlockSparseParams sparse;
  int* const fields[] = {&sparse.local_blocks, &sparse.vertical_stride, &sparse.block_size,
                         &sparse.head_sliding_step, &sparse.tp_rank};
  if (numbers.size() > std::size(fields)) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_sparse has too many numbers: expected at most ", std::size(fields),
                     ", got ", numbers.size()));
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    REPRISE_ASSIGN_OR_RETURN(*fields[i], ToInt("block_sparse", numbers[i]));
  }
  return sparse;
}

}  // namespace

LayerArguments ReadLayerArguments(OperatorCall& call) {
  LayerArguments arguments;
  arguments.scale = call.MaybeDouble("scale");
  arguments.window_left = call.MaybeInt("window_left");
  arguments.window_right = call.MaybeInt("window_right");
  arguments.softcap = call.MaybeDouble("softcap");
  arguments.alibi_slopes = call.MaybeTensor("alibi_slopes");
  arguments.sinks = call.MaybeTensor("sinks");
  arguments.q_scale = call.MaybeTensor("q_scale");
  arguments.rope_theta = call.MaybeDouble("rope_theta");
  arguments.rope_scale = call.Double("rope_scale");
  arguments.rotary_dim = call.Int("rotary_dim");
  arguments.block_sparse = call.MaybeInts("block_sparse");
  arguments.q_head_scales = call.MaybeTensor("q_head_scales");
  return arguments;
}

absl::StatusOr<AttentionParams> MakeAttentionParams(const LayerArguments& arguments,
                                                    const LayerHeads& heads, at::Device device) {
  AttentionParams params = {.num_q_heads = heads.num_q_heads,
                            .num_kv_heads = heads.num_kv_heads,
                            .head_dim_qk = heads.head_dim_qk,
                            .head_dim_v = heads.head_dim_v};
  if (arguments.scale) params.scale = static_cast<float>(*arguments.scale);
  if (arguments.softcap) params.softcap = static_cast<float>(*arguments.softcap);
  REPRISE_ASSIGN_OR_RETURN(params.window_left,
                           WindowArgument("window_left", arguments.window_left));
  REPRISE_ASSIGN_OR_RETURN(params.window_right,
                           WindowArgument("window_right", arguments.window_right));
  REPRISE_RETURN_IF_ERROR(TakeSlopes(arguments.alibi_slopes, heads, device, params));
  REPRISE_ASSIGN_OR_RETURN(params.sinks, PerHead("sinks", arguments.sinks, heads, device));
  REPRISE_ASSIGN_OR_RETURN(params.q_scale,
                           ScaleOf("q_scale", arguments.q_scale, heads.num_kv_heads, device));
  REPRISE_ASSIGN_OR_RETURN(params.q_head_scales,
                           PerHead("q_head_scales", arguments.q_head_scales, heads, device));
  if (arguments.rope_theta) {
    params.rotary = RotaryParams{.rope_scale = static_cast<float>(arguments.rope_scale),
                                 .rope_theta = static_cast<float>(*arguments.rope_theta)};
    REPRISE_ASSIGN_OR_RETURN(params.rotary->rotary_dim, ToInt("rotary_dim", arguments.rotary_dim));
  }
  if (arguments.block_sparse) {
    REPRISE_ASSIGN_OR_RETURN(params.sparse, ToBlockSparse(*arguments.block_sparse));
  }
  return params;
}

}  // namespace reprise
