// torch.ops.reprise.paged_attention and ragged_attention: PagedAttention() and RaggedAttention()
// (attention/attention.h) for tensors. See docs/operators.md.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/attention/torch_ops/batch_arguments.h"
#include "reprise/attention/torch_ops/device_work.h"
#include "reprise/attention/torch_ops/kv_tensors.h"
#include "reprise/attention/torch_ops/layer_arguments.h"
#include "reprise/attention/torch_ops/operator_call.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

#define REPRISE_WORK_SCHEMA \
  "Tensor? plan=None, Tensor(w!)? workspace=None, bool deterministic=False"

#define REPRISE_NEW_KEYS_SCHEMA "Tensor? new_k=None, Tensor? new_v=None"

#define REPRISE_ROPE_SCHEMA "Tensor? rope_cache=None, Tensor? rope_cache_scale=None"

#define REPRISE_OUTPUT_SCHEMA                                   \
  "Tensor? out_scale=None, Tensor(s!)? out_block_scales=None, " \
  "ScalarType? products=None, int max_tier=2"

#define REPRISE_PAGED_SCHEMA                                                                       \
  "Tensor q, Tensor k_cache, Tensor v_cache, " REPRISE_BATCH_SCHEMA                                \
  ", *, " REPRISE_BATCH_OPTIONS_SCHEMA ", " REPRISE_CACHE_OPTIONS_SCHEMA ", " REPRISE_LAYER_SCHEMA \
  ", " REPRISE_ROPE_SCHEMA ", " REPRISE_NEW_KEYS_SCHEMA ", " REPRISE_OUTPUT_SCHEMA                 \
  ", " REPRISE_WORK_SCHEMA

#define REPRISE_RAGGED_SCHEMA                                                       \
  "Tensor q, Tensor k, Tensor v, Tensor query_start_loc, Tensor key_start_loc, *, " \
  "Tensor? query_positions=None, bool causal=True, int? max_query_len=None, "       \
  "int? max_seq_len=None, " REPRISE_CUSTOM_MASK_SCHEMA                              \
  ", str? kv_dtype=None, Tensor? k_scale=None, "                                    \
  "Tensor? v_scale=None, " REPRISE_LAYER_SCHEMA ", " REPRISE_OUTPUT_SCHEMA          \
  ", " REPRISE_WORK_SCHEMA

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

struct ExtraArguments {
  std::optional<at::Tensor> new_k, new_v, out_scale, out_block_scales;
  std::optional<at::ScalarType> products;
  int64_t max_tier = 2;
};

void ReadNewKeys(OperatorCall& call, ExtraArguments& extras) {
  extras.new_k = call.MaybeTensor("new_k");
  extras.new_v = call.MaybeTensor("new_v");
}

void ReadOutputOptions(OperatorCall& call, ExtraArguments& extras) {
  extras.out_scale = call.MaybeTensor("out_scale");
  extras.out_block_scales = call.MaybeTensor("out_block_scales");
  extras.products = call.MaybeDType("products");
  extras.max_tier = call.Int("max_tier");
}

// Returns extras that point into the arguments.
absl::StatusOr<AttentionExtras> MakeExtras(ExtraArguments& arguments, at::Device device) {
  AttentionExtras extras;
  if (arguments.new_k) extras.new_k = &*arguments.new_k;
  if (arguments.new_v) extras.new_v = &*arguments.new_v;
  if (arguments.out_block_scales) extras.out_block_scales = &*arguments.out_block_scales;
  if (arguments.out_scale && arguments.out_scale->numel() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "out_scale must be one number: expected 1 element, got ", arguments.out_scale->numel()));
  }
  REPRISE_ASSIGN_OR_RETURN(extras.out_scale,
                           ScaleOf("out_scale", arguments.out_scale, /*num_kv_heads=*/1, device));
  return extras;
}

absl::StatusOr<KernelChoice> KernelsOf(const ExtraArguments& arguments) {
  KernelChoice kernels;
  if (arguments.products) {
    kernels.products = FromScalarType(*arguments.products);
    if (!kernels.products) {
      return absl::InvalidArgumentError(
          absl::StrCat("products must be a type to multiply in: expected float32, float16 or "
                       "bfloat16, got ",
                       c10::toString(*arguments.products)));
    }
  }
  REPRISE_ASSIGN_OR_RETURN(kernels.max_tier, CountArgument("max_tier", arguments.max_tier));
  return kernels;
}

// Sets max_tier to 1 if only general kernels support the call, so that a schedule for this call is
// planned for these kernels. REQUIRES: q is on a GPU; attention supports the dtypes of q and of the
// keys.
template <typename Batch>
void TakeNeeds(const AttentionParams& layer, const Batch& batch, const at::Tensor& q,
               const KvLayer& kv, const AttentionExtras& extras, KernelChoice& kernels) {
  const CallForm form = {.q_dtype = *FromScalarType(q.scalar_type()),
                         .has_custom_mask = batch.custom_mask != nullptr,
                         .has_new_keys = extras.new_k != nullptr};
  if (NeedsGeneralKernels(KernelKeyOf(layer, kv, form, kernels))) {
    kernels.max_tier = std::min(kernels.max_tier, 1);
  }
}

// The outputs of the out= form, or the out dtype of the functional form.
struct OutputArguments {
  std::optional<Outputs> given = {};
  std::optional<at::ScalarType> out_dtype = {};
};

// Returns the dtype of out: by default q's dtype, or bfloat16 if q is fp8.
at::ScalarType OutTypeOf(const at::Tensor& q, const std::optional<at::ScalarType>& asked) {
  if (asked) return *asked;
  const std::optional<DType> dtype = FromScalarType(q.scalar_type());
  return dtype && IsFp8(*dtype) ? at::kBFloat16 : q.scalar_type();
}

// Allocates outputs. Sizes may be symbolic.
Outputs NewOutputs(const at::Tensor& q, c10::SymInt head_dim_v,
                   const std::optional<at::ScalarType>& out_dtype) {
  const at::ScalarType lse_type = at::kFloat;
  return {.out = at::empty_symint({q.sym_size(0), q.sym_size(1), std::move(head_dim_v)},
                                  q.options().dtype(OutTypeOf(q, out_dtype))),
          .lse = at::empty_symint({q.sym_size(0), q.sym_size(1)}, q.options().dtype(lse_type))};
}

OutputArguments ReadOutputs(OperatorCall& call) {
  Outputs outputs;
  outputs.out = call.Tensor("out");
  outputs.lse = call.MaybeTensor("lse");
  return {.given = std::move(outputs)};
}

OutputArguments ReadOutDType(OperatorCall& call) {
  return {.out_dtype = call.MaybeDType("out_dtype")};
}

// Used while tracing, where sizes may be symbolic.
absl::Status CheckRank(const char* argument, const at::Tensor& tensor, int64_t rank) {
  if (tensor.dim() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(argument, " has the wrong rank: expected ", rank,
                                                 " dimensions, got ", tensor.dim()));
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
  ExtraArguments extras;
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
  arguments.kv.rope_cache = call.MaybeTensor("rope_cache");
  arguments.kv.rope_cache_scale = call.MaybeTensor("rope_cache_scale");
  ReadNewKeys(call, arguments.extras);
  ReadOutputOptions(call, arguments.extras);
  arguments.work = ReadWork(call);
  return arguments;
}

// Runs the attention with the given outputs, or allocates outputs.
absl::StatusOr<Outputs> RunPaged(PagedArguments& arguments, OutputArguments outputs) {
  const at::Tensor& q = arguments.q;
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("q", q));
  REPRISE_ASSIGN_OR_RETURN(const KvLayer kv, KvLayerOf(arguments.kv));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k_cache", arguments.kv.k_cache, q.device()));
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch batch,
                           MakePagedBatch(arguments.batch, q.size(0), kv.block_size, q.device()));
  REPRISE_ASSIGN_OR_RETURN(const AttentionParams layer,
                           MakeAttentionParams(arguments.layer,
                                               {.num_q_heads = static_cast<int>(q.size(1)),
                                                .num_kv_heads = kv.num_kv_heads,
                                                .head_dim_qk = kv.head_dim_qk,
                                                .head_dim_v = kv.head_dim_v,
                                                .num_tables = batch.num_tables},
                                               q.device()));
  REPRISE_ASSIGN_OR_RETURN(const AttentionExtras extras, MakeExtras(arguments.extras, q.device()));
  if (!outputs.given) outputs.given = NewOutputs(q, kv.head_dim_v, outputs.out_dtype);
  at::Tensor* const lse = outputs.given->lse ? &*outputs.given->lse : nullptr;
  at::Tensor keep_alive;
  REPRISE_ASSIGN_OR_RETURN(KernelChoice kernels, KernelsOf(arguments.extras));
  if (q.is_cuda() && FromScalarType(q.scalar_type())) {
    TakeNeeds(layer, batch, q, kv, extras, kernels);
  }
  REPRISE_ASSIGN_OR_RETURN(const BatchSchedule work,
                           WorkFor(arguments.work, kernels, layer, batch, q, keep_alive));
  REPRISE_RETURN_IF_ERROR(
      PagedAttention(layer, batch, work, q, kv, {outputs.given->out, lse}, extras));
  return *std::move(outputs.given);
}

absl::Status PagedAttentionOp(OperatorCall& call) {
  PagedArguments arguments = ReadPaged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunPaged(arguments, ReadOutDType(call)));
  call.Return({outputs.out, *outputs.lse});
  return absl::OkStatus();
}

absl::Status TracePagedAttention(OperatorCall& call) {
  const PagedArguments arguments = ReadPaged(call);
  const OutputArguments outputs = ReadOutDType(call);
  REPRISE_RETURN_IF_ERROR(CheckRank("q", arguments.q, 3));
  const at::Tensor& v_cache = arguments.kv.v_cache;
  REPRISE_RETURN_IF_ERROR(CheckRank("v_cache", v_cache, 4));
  const int head_dim = arguments.kv.layout == "K-packed" ? 2 : 3;
  const Outputs made = NewOutputs(arguments.q, v_cache.sym_size(head_dim), outputs.out_dtype);
  call.Return({made.out, *made.lse});
  return absl::OkStatus();
}

absl::Status PagedAttentionOutOp(OperatorCall& call) {
  PagedArguments arguments = ReadPaged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunPaged(arguments, ReadOutputs(call)));
  call.Return({outputs.out});
  return absl::OkStatus();
}

struct RaggedArguments {
  at::Tensor q, k, v;
  RaggedBatchArguments batch;
  std::optional<std::string> kv_dtype;
  std::optional<at::Tensor> k_scale, v_scale;
  LayerArguments layer;
  ExtraArguments extras;
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
  arguments.batch.custom_mask = call.MaybeTensor("custom_mask");
  arguments.batch.custom_mask_offset = call.MaybeTensor("custom_mask_offset");
  arguments.kv_dtype = call.MaybeString("kv_dtype");
  arguments.k_scale = call.MaybeTensor("k_scale");
  arguments.v_scale = call.MaybeTensor("v_scale");
  arguments.layer = ReadLayerArguments(call);
  ReadOutputOptions(call, arguments.extras);
  arguments.work = ReadWork(call);
  return arguments;
}

absl::StatusOr<Outputs> RunRagged(RaggedArguments& arguments, OutputArguments outputs) {
  const at::Tensor& q = arguments.q;
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("q", q));
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("k", arguments.k));
  REPRISE_RETURN_IF_ERROR(CheckIsRanked("v", arguments.v));
  REPRISE_ASSIGN_OR_RETURN(
      const RaggedBatch batch,
      MakeRaggedBatch(arguments.batch, q.size(0), arguments.k.size(0), q.device()));
  REPRISE_ASSIGN_OR_RETURN(
      const AttentionParams layer,
      MakeAttentionParams(arguments.layer,
                          {.num_q_heads = static_cast<int>(q.size(1)),
                           .num_kv_heads = static_cast<int>(arguments.k.size(1)),
                           .head_dim_qk = static_cast<int>(arguments.k.size(2)),
                           .head_dim_v = static_cast<int>(arguments.v.size(2)),
                           .num_tables = batch.num_rows},
                          q.device()));
  REPRISE_ASSIGN_OR_RETURN(AttentionExtras extras, MakeExtras(arguments.extras, q.device()));
  REPRISE_ASSIGN_OR_RETURN(const Scale k_scale,
                           ScaleOf("k_scale", arguments.k_scale, layer.num_kv_heads, q.device()));
  REPRISE_ASSIGN_OR_RETURN(const Scale v_scale,
                           ScaleOf("v_scale", arguments.v_scale, layer.num_kv_heads, q.device()));
  if (!outputs.given) outputs.given = NewOutputs(q, layer.head_dim_v, outputs.out_dtype);
  at::Tensor* const lse = outputs.given->lse ? &*outputs.given->lse : nullptr;
  at::Tensor keep_alive;
  const at::Tensor k = Fp8Of(arguments.k, arguments.kv_dtype);
  const at::Tensor v = Fp8Of(arguments.v, arguments.kv_dtype);
  const ContiguousKeys keys = {k, v, k_scale, v_scale};
  REPRISE_ASSIGN_OR_RETURN(KernelChoice kernels, KernelsOf(arguments.extras));
  if (q.is_cuda() && FromScalarType(q.scalar_type()) && FromScalarType(k.scalar_type())) {
    TakeNeeds(layer, batch, q, RaggedKv(layer, keys), extras, kernels);
  }
  REPRISE_ASSIGN_OR_RETURN(const BatchSchedule work,
                           WorkFor(arguments.work, kernels, layer, batch, q, keep_alive));
  REPRISE_RETURN_IF_ERROR(
      RaggedAttention(layer, batch, work, q, keys, {outputs.given->out, lse}, extras));
  return *std::move(outputs.given);
}

absl::Status RaggedAttentionOp(OperatorCall& call) {
  RaggedArguments arguments = ReadRagged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunRagged(arguments, ReadOutDType(call)));
  call.Return({outputs.out, *outputs.lse});
  return absl::OkStatus();
}

absl::Status TraceRaggedAttention(OperatorCall& call) {
  const RaggedArguments arguments = ReadRagged(call);
  const OutputArguments outputs = ReadOutDType(call);
  REPRISE_RETURN_IF_ERROR(CheckRank("q", arguments.q, 3));
  REPRISE_RETURN_IF_ERROR(CheckRank("v", arguments.v, 3));
  const Outputs made = NewOutputs(arguments.q, arguments.v.sym_size(2), outputs.out_dtype);
  call.Return({made.out, *made.lse});
  return absl::OkStatus();
}

absl::Status RaggedAttentionOutOp(OperatorCall& call) {
  RaggedArguments arguments = ReadRagged(call);
  REPRISE_ASSIGN_OR_RETURN(const Outputs outputs, RunRagged(arguments, ReadOutputs(call)));
  call.Return({outputs.out});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "paged_attention(" REPRISE_PAGED_SCHEMA
                 ", ScalarType? out_dtype=None) -> (Tensor out, Tensor lse)",
                 PagedAttentionOp, TracePagedAttention);
  DefineOperator(library,
                 "paged_attention.out(" REPRISE_PAGED_SCHEMA
                 ", Tensor(a!) out, Tensor(b!)? lse=None) -> Tensor(a!)",
                 PagedAttentionOutOp);
  DefineOperator(library,
                 "ragged_attention(" REPRISE_RAGGED_SCHEMA
                 ", ScalarType? out_dtype=None) -> (Tensor out, Tensor lse)",
                 RaggedAttentionOp, TraceRaggedAttention);
  DefineOperator(library,
                 "ragged_attention.out(" REPRISE_RAGGED_SCHEMA
                 ", Tensor(a!) out, Tensor(b!)? lse=None) -> Tensor(a!)",
                 RaggedAttentionOutOp);
}

}  // namespace reprise
