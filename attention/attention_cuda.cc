#include "attention/attention_cuda.h"

#include "attention/work_map_build.h"
#include "base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "attention/kernels/attention_dispatch.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA
namespace {

absl::Status CheckPlannedFor(const char* name, int64_t planned, int64_t got) {
  if (planned == got) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("work was planned for another layer: expected ",
                                                 name, " ", planned, ", got ", got));
}

absl::Status CheckLayer(const AttentionParams& layer, const WorkMap& work, DType q_dtype) {
  if (layer.rotary) {
    return absl::UnimplementedError(
        "rotary inside the attention kernel is not supported on CUDA: write rotated keys to the "
        "cache, or use the CPU");
  }
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("num_q_heads", work.num_q_heads, layer.num_q_heads));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("num_kv_heads", work.num_kv_heads, layer.num_kv_heads));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("head_dim_qk", work.head_dim_qk, layer.head_dim_qk));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("head_dim_v", work.head_dim_v, layer.head_dim_v));
  if (work.dtype == q_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("work was planned for another dtype of q: expected ",
                   std::string(DTypeName(work.dtype)), ", got ", std::string(DTypeName(q_dtype))));
}

bool IsAligned(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether a head is whole chunks of 16 bytes at multiples of 16 bytes.
bool IsAligned(const KvView& view, int head_dim, DType dtype) {
  const int chunk = 16 / SizeOf(dtype);
  const bool chunks = view.dim_chunk >= head_dim ||
                      (view.dim_chunk % chunk == 0 && view.dim_chunk_stride % chunk == 0);
  return chunks && head_dim % chunk == 0 && IsAligned(view.data, 16) &&
         view.block_stride % chunk == 0 && view.token_stride % chunk == 0 &&
         view.head_stride % chunk == 0;
}

// What paged and ragged batches have in common.
AttentionKernelParams LayerAndTensors(const AttentionParams& layer, const WorkMap& work,
                                      const at::Tensor& q, const KvLayer& kv, at::Tensor& out,
                                      at::Tensor* lse) {
  AttentionKernelParams params = {};
  params.num_q_heads = layer.num_q_heads;
  params.num_kv_heads = layer.num_kv_heads;
  params.group_size = layer.group_size();
  params.head_dim_qk = layer.head_dim_qk;
  params.head_dim_v = layer.head_dim_v;
  params.scale = layer.resolved_scale();
  params.window_left = layer.window_left.value_or(-1);
  params.window_right = layer.window_right.value_or(-1);
  params.softcap = layer.softcap.value_or(0.0f);
  params.alibi_slopes = layer.alibi_slopes;
  params.sinks = layer.sinks;
  params.q_scale = layer.q_scale;
  params.k_scale = kv.k_scale;
  params.v_scale = kv.v_scale;
  if (layer.sparse && layer.sparse->vertical_stride > 1) {
    params.sparse_stride = layer.sparse->vertical_stride;
    params.sparse_local_blocks = layer.sparse->local_blocks;
    params.sparse_block_size = layer.sparse->block_size;
    params.sparse_head_step = layer.sparse->head_sliding_step;
    params.sparse_tp_rank = layer.sparse->tp_rank;
  }

  params.q = q.const_data_ptr();
  params.q_token_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.k = kv.k;
  params.v = kv.v;
  params.block_size = kv.block_size;
  params.num_blocks = kv.num_blocks;
  params.out = out.mutable_data_ptr();
  params.out_token_stride = out.stride(0);
  params.out_head_stride = out.stride(1);
  params.out_is_float = out.scalar_type() == at::kFloat;
  params.num_out_tokens = out.size(0);
  if (lse != nullptr) {
    params.lse = lse->mutable_data_ptr<float>();
    params.lse_token_stride = lse->stride(0);
    params.lse_head_stride = lse->stride(1);
  }

  const int q_chunk = 16 / static_cast<int>(q.element_size());
  params.q_is_aligned = layer.head_dim_qk % q_chunk == 0 && IsAligned(params.q, 16) &&
                        params.q_token_stride % q_chunk == 0 && params.q_head_stride % q_chunk == 0;
  params.kv_is_aligned =
      IsAligned(kv.k, layer.head_dim_qk, kv.dtype) && IsAligned(kv.v, layer.head_dim_v, kv.dtype);
  params.out_is_aligned = IsAligned(params.out, 4 * static_cast<int>(out.element_size())) &&
                          layer.head_dim_v % 4 == 0 && params.out_token_stride % 4 == 0 &&
                          params.out_head_stride % 4 == 0;
  params.work = work;
  return params;
}

absl::Status Launch(const AttentionKernelParams& params, DType q_dtype, DType kv_dtype,
                    const at::Device& device) {
  REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel,
                           FindAttentionKernel({.q_dtype = q_dtype,
                                                .kv_dtype = kv_dtype,
                                                .head_dim_qk = params.head_dim_qk,
                                                .head_dim_v = params.head_dim_v,
                                                .tile_rows = params.work.tile_rows}));
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = kernel->launch(params, c10::cuda::getCurrentCUDAStream(device.index()));
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("attention could not be launched: ", cudaGetErrorString(error)));
}

absl::StatusOr<DType> DTypeOf(const at::Tensor& q) {
  if (const std::optional<DType> dtype = FromScalarType(q.scalar_type())) return *dtype;
  return absl::InvalidArgumentError("q has the wrong dtype: expected float32, float16 or bfloat16");
}

// The cache that contiguous k and v are: one block of all keys.
KvLayer OneBlock(const AttentionParams& layer, DType dtype, const at::Tensor& k,
                 const at::Tensor& v) {
  const auto view = [](const at::Tensor& tensor, int head_dim) {
    // The kernel only reads.
    return KvView{.data = const_cast<void*>(tensor.const_data_ptr()),
                  .token_stride = tensor.stride(0),
                  .head_stride = tensor.stride(1),
                  .dim_chunk = head_dim};
  };
  return {.k = view(k, layer.head_dim_qk),
          .v = view(v, layer.head_dim_v),
          .dtype = dtype,
          .num_blocks = 1,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v};
}

}  // namespace

absl::Status PagedAttentionCuda(const AttentionParams& layer, const PagedBatch& batch,
                                const WorkMap& work, const at::Tensor& q, const KvLayer& kv,
                                at::Tensor& out, at::Tensor* lse) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, work));
    REPRISE_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(q));
    REPRISE_RETURN_IF_ERROR(CheckLayer(layer, work, dtype));
    AttentionKernelParams params = LayerAndTensors(layer, work, q, kv, out, lse);
    params.query_start_loc = batch.query_start_loc;
    params.block_table = batch.block_table;
    params.block_table_stride = batch.block_table_stride;
    params.query_positions = batch.query_positions;
    params.tail_mask = batch.tail_mask;
    params.rank = batch.key_positions.rank;
    params.world = batch.key_positions.world;
    params.interleave = batch.key_positions.interleave;
    params.num_rows = batch.num_rows;
    params.causal = batch.causal;
    return Launch(params, dtype, kv.dtype, q.device());
  });
}

absl::Status RaggedAttentionCuda(const AttentionParams& layer, const RaggedBatch& batch,
                                 const WorkMap& work, const at::Tensor& q, const at::Tensor& k,
                                 const at::Tensor& v, at::Tensor& out, at::Tensor* lse) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, work));
    REPRISE_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(q));
    REPRISE_RETURN_IF_ERROR(CheckLayer(layer, work, dtype));
    const KvLayer kv = OneBlock(layer, dtype, k, v);
    AttentionKernelParams params = LayerAndTensors(layer, work, q, kv, out, lse);
    params.query_start_loc = batch.query_start_loc;
    params.query_positions = batch.query_positions;
    params.world = 1;
    params.interleave = 1;
    params.num_rows = batch.num_rows;
    params.causal = batch.causal;
    return Launch(params, dtype, kv.dtype, q.device());
  });
}

#else  // REPRISE_WITH_CUDA

absl::Status PagedAttentionCuda(const AttentionParams&, const PagedBatch& batch,
                                const WorkMap& work, const at::Tensor&, const KvLayer&, at::Tensor&,
                                at::Tensor*) {
  REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, work));
  return absl::UnimplementedError("PagedAttentionCuda: this build has no CUDA");
}

absl::Status RaggedAttentionCuda(const AttentionParams&, const RaggedBatch& batch,
                                 const WorkMap& work, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, at::Tensor&, at::Tensor*) {
  REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, work));
  return absl::UnimplementedError("RaggedAttentionCuda: this build has no CUDA");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
