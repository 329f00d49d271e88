// The arguments for a layer's parameters, shared by paged and ragged attention: their part of a
// schema, and AttentionParams made from them.

#ifndef REPRISE_ATTENTION_TORCH_OPS_LAYER_ARGUMENTS_H_
#define REPRISE_ATTENTION_TORCH_OPS_LAYER_ARGUMENTS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/torch_ops/operator_call.h"

namespace reprise {

// block_sparse: local_blocks, vertical_stride, block_size, head_sliding_step, tp_rank; trailing
// elements may be omitted. alibi_slopes: [num_q_heads], or per sequence [num_tables, num_q_heads].
#define REPRISE_LAYER_SCHEMA                                                                   \
  "float? scale=None, int? window_left=None, int? window_right=None, float? softcap=None, "    \
  "Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? q_scale=None, "                      \
  "float? rope_theta=None, float rope_scale=1.0, int rotary_dim=0, int[]? block_sparse=None, " \
  "Tensor? q_head_scales=None"

struct LayerArguments {
  std::optional<double> scale;
  std::optional<int64_t> window_left, window_right;
  std::optional<double> softcap;
  std::optional<at::Tensor> alibi_slopes, sinks, q_scale;
  std::optional<double> rope_theta;  // absent: the kernel applies no rotary embedding
  double rope_scale = 1.0;
  int64_t rotary_dim = 0;
  std::optional<std::vector<int64_t>> block_sparse;
  std::optional<at::Tensor> q_head_scales;
};

// Reads the arguments of REPRISE_LAYER_SCHEMA. REQUIRES: they are the next arguments of `call`.
LayerArguments ReadLayerArguments(OperatorCall& call);

struct LayerHeads {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int64_t num_tables = 0;  // rows of the block table; in ragged attention, rows of the batch
};

// Makes parameters that point into the arguments' tensors. REQUIRES: the tensors are on `device`.
// Errors: InvalidArgument.
absl::StatusOr<AttentionParams> MakeAttentionParams(const LayerArguments& arguments,
                                                    const LayerHeads& heads, at::Device device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_LAYER_ARGUMENTS_H_
