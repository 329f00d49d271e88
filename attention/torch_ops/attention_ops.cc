// torch.ops.reprise.paged_attention and ragged_attention: PagedAttention() and RaggedAttention()
// (attention/attention.h) with tensors. See docs/operators.md.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <utility>

#include "attention/attention.h"
#include "attention/torch_ops/argument_parts.h"
#include "attention/torch_ops/batch_arguments.h"
#include "attention/torch_ops/device_work.h"
#include "attention/torch_ops/kv_tensors.h"
#include "attention/torch_ops/layer_arguments.h"
#include "attention/torch_ops/operator_call.h"
#include "base/shape_check.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

#define REPRISE_WORK_SCHEMA \
  "Tensor? plan=None, Tensor(w!)? workspace=None, bool deterministic=False"

#define REPRISE_PAGED_SCHEMA                                                                       \
  "Tensor q, Tensor k_cache, Tensor v_cache, " REPRISE_BATCH_SCHEMA                                \
  ", *, " REPRISE_BATCH_OPTIONS_SCHEMA ", " REPRISE_CACHE_OPTIONS_SCHEMA ", " REPRISE_LAYER_SCHEMA \
  ", " REPRISE_WORK_SCHEMA

#define REPRISE_RAGGED_SCHEMA                                                       \
  "Tensor q, Tensor k, Tensor v, Tensor query_start_loc, Tensor key_start_loc, *, " \
  "Tensor? query_positions=None, bool causal=True, int? max_query_len=None, "       \
  "int? max_seq_len=None, " REPRISE_LAYER_SCHEMA ", " REPRISE_WORK_SCHEMA

struct Outputs {
  at::Tensor out;
  std::optional<at::Tensor> lse;
};

WorkTensors ReadWork(OperatorCall& call) {
  WorkTensors work;
  work.plan = call.MaybeTensor("plan");
  work.workspace = call.MaybeTensor("workspace");
  work.deterministic = call.Bool("deterministic");
  return work;
}

// Those of the out= form, or new ones of the functional form.
Outputs NewOutputs(const at::Tensor& q, int64_t head_dim_v) {
  const at::ScalarType lse_type = at::kFloat;
  return {.out = at::empty({q.size(0), q.size(1), head_dim_v}, q.options()),
          .lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(lse_type))};
}

Outputs ReadOutputs(OperatorCall& call) {
  Outputs outputs;
  outputs.out = call.Tensor("out");
  outputs.lse = call.MaybeTensor("lse");
  return outputs;
}

absl::Status CheckIsRanked(const char* argument, const at::Tensor& tensor) {
  ShapeChecker dims;
  return dims.Check(argument, tensor, {"tokens", "heads", "dim"});
}

struct PagedArguments {
  at::Tensor q;
  KvTensors kv;
  BatchArguments batch;
  LayerArguments layer;
  WorkTensors work;
};

PagedArguments ReadPaged(OperatorCall& call) {
  PagedArguments arguments;
  arguments.q = call.Tensor("q");
  arguments.kv.k_cache = call.Tensor("k_cache");
  arguments.kv.v_cache = call.Tensor("v_cache");
  ReadBatchArguments(call, arguments.batch);
  ReadBatchOptions(call, arguments.batch);
  ReadCacheOptions(call, arguments.kv);
  arguments.layer = ReadLayerArguments(call);
  arguments.work = ReadWork(call);
  return arguments;
}

// Runs on `outputs`, or on new ones.
absl::StatusOr<Outputs> RunPaged(const PagedArguments& arguments, std::optional<Outputs> outputs) {
  const at::Tensor& q = arguments.q;
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("q", q));
  REPRISE_ASSIGN_OR_RETURN(const KvLayer kv, KvLayerOf(arguments.kv));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k_cache", arguments.kv.k_cache, q.device()));
  REPRISE_ASSIGN_OR_RETURN(const AttentionParams layer,
                           MakeAttentionParams(arguments.layer,
                                               {.num_q_heads = static_cast<int>(q.size(1)),
                                                .num_kv_heads = kv.num_kv_heads,
                                                .head_dim_qk = kv.head_dim_qk,
                                                .head_dim_v = kv.head_dim_v},
                                               q.device()));
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch batch,
                           MakePagedBatch(arguments.batch, q.size(0), kv.block_size, q.device()));
  if (!outputs) outputs = NewOutputs(q, kv.head_dim_v);
  at::Tensor* const lse = outputs->lse ? &*outputs->lse : nullptr;
  at::Tensor keep_alive;
  REPRISE_ASSIGN_OR_RETURN(const WorkMap work,
                           WorkFor(arguments.work, layer, batch, q, keep_alive));
  REPRISE_RETURN_IF_ERROR(PagedAttention(layer, batch, work, q, kv, outputs->out, lse));
  return *std::move(outputs);
}

absl::Status PagedAttentionOp(OperatorCall& call) {
  const PagedArguments arguments = ReadPaged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunPaged(arguments, std::nullopt));
  call.Return({outputs.out, *outputs.lse});
  return absl::OkStatus();
}

absl::Status PagedAttentionOutOp(OperatorCall& call) {
  const PagedArguments arguments = ReadPaged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunPaged(arguments, ReadOutputs(call)));
  call.Return({outputs.out});
  return absl::OkStatus();
}

struct RaggedArguments {
  at::Tensor q, k, v;
  RaggedBatchArguments batch;
  LayerArguments layer;
  WorkTensors work;
};

RaggedArguments ReadRagged(OperatorCall& call) {
  RaggedArguments arguments;
  arguments.q = call.Tensor("q");
  arguments.k = call.Tensor("k");
  arguments.v = call.Tensor("v");
  arguments.batch.query_start_loc = call.Tensor("query_start_loc");
  arguments.batch.key_start_loc = call.Tensor("key_start_loc");
  arguments.batch.query_positions = call.MaybeTensor("query_positions");
  arguments.batch.causal = call.Bool("causal");
  arguments.batch.max_query_len = call.MaybeInt("max_query_len");
  arguments.batch.max_seq_len = call.MaybeInt("max_seq_len");
  arguments.layer = ReadLayerArguments(call);
  arguments.work = ReadWork(call);
  return arguments;
}

absl::StatusOr<Outputs> RunRagged(const RaggedArguments& arguments,
                                  std::optional<Outputs> outputs) {
  const at::Tensor& q = arguments.q;
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("q", q));
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("k", arguments.k));
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("v", arguments.v));
  REPRISE_ASSIGN_OR_RETURN(
      const AttentionParams layer,
      MakeAttentionParams(arguments.layer,
                          {.num_q_heads = static_cast<int>(q.size(1)),
                           .num_kv_heads = static_cast<int>(arguments.k.size(1)),
                           .head_dim_qk = static_cast<int>(arguments.k.size(2)),
                           .head_dim_v = static_cast<int>(arguments.v.size(2))},
                          q.device()));
  REPRISE_ASSIGN_OR_RETURN(
      const RaggedBatch batch,
      MakeRaggedBatch(arguments.batch, q.size(0), arguments.k.size(0), q.device()));
  if (!outputs) outputs = NewOutputs(q, layer.head_dim_v);
  at::Tensor* const lse = outputs->lse ? &*outputs->lse : nullptr;
  at::Tensor keep_alive;
  REPRISE_ASSIGN_OR_RETURN(const WorkMap work,
                           WorkFor(arguments.work, layer, batch, q, keep_alive));
  REPRISE_RETURN_IF_ERROR(
      RaggedAttention(layer, batch, work, q, arguments.k, arguments.v, outputs->out, lse));
  return *std::move(outputs);
}

absl::Status RaggedAttentionOp(OperatorCall& call) {
  const RaggedArguments arguments = ReadRagged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunRagged(arguments, std::nullopt));
  call.Return({outputs.out, *outputs.lse});
  return absl::OkStatus();
}

absl::Status RaggedAttentionOutOp(OperatorCall& call) {
  const RaggedArguments arguments = ReadRagged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunRagged(arguments, ReadOutputs(call)));
  call.Return({outputs.out});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library, "paged_attention(" REPRISE_PAGED_SCHEMA ") -> (Tensor out, Tensor lse)",
                 PagedAttentionOp);
  DefineOperator(library,
                 "paged_attention.out(" REPRISE_PAGED_SCHEMA
                 ", Tensor(a!) out, Tensor(b!)? lse=None) -> Tensor(a!)",
                 PagedAttentionOutOp);
  DefineOperator(library, "ragged_attention(" REPRISE_RAGGED_SCHEMA ") -> (Tensor out, Tensor lse)",
                 RaggedAttentionOp);
  DefineOperator(library,
                 "ragged_attention.out(" REPRISE_RAGGED_SCHEMA
                 ", Tensor(a!) out, Tensor(b!)? lse=None) -> Tensor(a!)",
                 RaggedAttentionOutOp);
}

}  // namespace reprise
