#include "reprise/attention/cuda/attention_cuda.h"

#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "reprise/attention/cuda/attention_dispatch.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/cuda/kernel_launch.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/torch_status.h"
#endif

namespace reprise {

KvLayer RaggedKv(const AttentionParams& layer, const ContiguousKeys& keys) {
  const auto view = [](const at::Tensor& tensor, int head_dim) {
    // Kernels only read through this pointer.
    return KvView{.data = const_cast<void*>(tensor.const_data_ptr()),
                  .token_stride = tensor.stride(0),
                  .head_stride = tensor.stride(1),
                  .dim_chunk = head_dim};
  };
  return {.k = view(keys.k, layer.head_dim_qk),
          .v = view(keys.v, layer.head_dim_v),
          .dtype = *FromScalarType(keys.k.scalar_type()),
          .num_blocks = 1,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v,
          .k_scale = keys.k_scale,
          .v_scale = keys.v_scale};
}

#ifdef REPRISE_WITH_CUDA
namespace {

absl::Status CheckPlannedFor(const char* name, int64_t planned, int64_t got) {
  if (planned == got) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("layer must match the plan of work: expected ",
                                                 name, " ", planned, ", got ", got));
}

absl::Status CheckLayer(const AttentionParams& layer, const KernelSchedule& work, DType q_dtype) {
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("num_q_heads", work.num_q_heads, layer.num_q_heads));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("num_kv_heads", work.num_kv_heads, layer.num_kv_heads));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("head_dim_qk", work.head_dim_qk, layer.head_dim_qk));
  REPRISE_RETURN_IF_ERROR(CheckPlannedFor("head_dim_v", work.head_dim_v, layer.head_dim_v));
  if (work.dtype == q_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("q must have the dtype that work was planned for: expected ",
                   std::string(DTypeName(work.dtype)), ", got ", std::string(DTypeName(q_dtype))));
}

bool IsAligned(const void* data, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// Whether rows of a tensor of tokens can be read in 16-byte chunks.
bool IsAligned(const at::Tensor& tokens, int head_dim) {
  const int chunk = 16 / static_cast<int>(tokens.element_size());
  return head_dim % chunk == 0 && IsAligned(tokens.const_data_ptr(), 16) &&
         tokens.stride(0) % chunk == 0 && tokens.stride(1) % chunk == 0;
}

void TakeLayer(const AttentionParams& layer, AttentionKernelParams& params) {
  params.num_q_heads = layer.num_q_heads;
  params.num_kv_heads = layer.num_kv_heads;
  params.group_size = layer.group_size();
  params.by_group_size = Divisor(params.group_size);
  params.head_dim_qk = layer.head_dim_qk;
  params.head_dim_v = layer.head_dim_v;
  params.scale = layer.resolved_scale();
  params.window_left = layer.window_left.value_or(-1);
  params.window_right = layer.window_right.value_or(-1);
  params.softcap = layer.softcap.value_or(0.0f);
  params.alibi_slopes = layer.alibi_slopes;
  params.alibi_row_stride = layer.alibi_row_stride;
  params.sinks = layer.sinks;
  params.q_scale = layer.q_scale;
  params.q_head_scales = layer.q_head_scales;
  if (layer.rotary) {
    params.rotary_dim =
        layer.rotary->rotary_dim == 0 ? layer.head_dim_qk : layer.rotary->rotary_dim;
    params.rope_scale = layer.rotary->rope_scale;
    params.rope_theta = layer.rotary->rope_theta;
  }
  if (layer.is_sparse()) {
    params.sparse_stride = layer.sparse->vertical_stride;
    params.sparse_local_blocks = layer.sparse->local_blocks;
    params.sparse_block_size = layer.sparse->block_size;
    params.sparse_head_step = layer.sparse->head_sliding_step;
    params.sparse_tp_rank = layer.sparse->tp_rank;
  }
}

void TakeCache(const KvLayer& kv, AttentionKernelParams& params) {
  params.k = kv.k;
  params.v = kv.v;
  params.kv_dtype = kv.dtype;
  params.k_access = AccessOf(kv.k, kv.key_dim(), kv.dtype);
  params.v_access = AccessOf(kv.v, kv.head_dim_v, kv.dtype);
  params.block_size = kv.block_size;
  params.by_block_size = Divisor(std::max(1, kv.block_size));
  params.num_blocks = kv.num_blocks;
  params.k_scale = kv.k_scale;
  params.v_scale = kv.v_scale;
  params.rope_dim = kv.rope_dim;
  params.rope_dtype = kv.rope_dtype;
  params.rope = kv.rope;
  params.rope_part_scale = kv.rope_scale;
  // The loader multiplies part of q by a ratio of scales, so it cannot copy q unchanged.
  if (kv.rope_dim > 0) params.q_is_aligned = 0;
}

void TakeExtras(const AttentionExtras& extras, AttentionKernelParams& params) {
  params.out_scale = extras.out_scale;
  if (extras.out_block_scales != nullptr) {
    at::Tensor& scales = *extras.out_block_scales;
    params.out_block_scales = scales.mutable_data_ptr<float>();
    params.out_block_token_stride = scales.stride(0);
    params.out_block_head_stride = scales.stride(1);
    params.out_block = params.head_dim_v / static_cast<int>(scales.size(2));
  }
  if (extras.new_k == nullptr) return;
  const at::Tensor& k = *extras.new_k;
  const at::Tensor& v = *extras.new_v;
  params.new_k = k.const_data_ptr();
  params.new_v = v.const_data_ptr();
  params.new_k_token_stride = k.stride(0);
  params.new_k_head_stride = k.stride(1);
  params.new_v_token_stride = v.stride(0);
  params.new_v_head_stride = v.stride(1);
  params.new_is_aligned = IsAligned(k, params.head_dim_qk) && IsAligned(v, params.head_dim_v);
}

// The parameters that paged and ragged batches have in common, without the tile schedule.
AttentionKernelParams LayerAndTensors(const AttentionParams& layer, const at::Tensor& q,
                                      const KvLayer& kv, const AttentionOutput& output,
                                      const AttentionExtras& extras) {
  AttentionKernelParams params = {};
  at::Tensor& out = output.out;
  at::Tensor* const lse = output.lse;
  TakeLayer(layer, params);
  params.q = q.const_data_ptr();
  params.q_dtype = *FromScalarType(q.scalar_type());
  params.q_token_stride = q.stride(0);
  params.q_head_stride = q.stride(1);
  params.q_is_aligned = IsAligned(q, layer.head_dim_qk);
  TakeCache(kv, params);
  TakeExtras(extras, params);
  params.out = out.mutable_data_ptr();
  params.out_dtype = *FromScalarType(out.scalar_type());
  params.out_token_stride = out.stride(0);
  params.out_head_stride = out.stride(1);
  params.num_out_tokens = out.size(0);
  params.out_is_aligned = IsAligned(params.out, 4 * static_cast<int>(out.element_size())) &&
                          layer.head_dim_v % 4 == 0 && params.out_token_stride % 4 == 0 &&
                          params.out_head_stride % 4 == 0;
  if (lse != nullptr) {
    params.lse = lse->mutable_data_ptr<float>();
    params.lse_token_stride = lse->stride(0);
    params.lse_head_stride = lse->stride(1);
    params.num_lse_tokens = lse->size(0);
  }
  params.num_clearable_tokens = std::max(params.num_out_tokens, params.num_lse_tokens);
  return params;
}

// Chooses the kernel, and sets the parameters that depend on it.
absl::StatusOr<const AttentionKernelEntry*> ChooseKernel(AttentionKernelKey key,
                                                         const AttentionExtras& extras,
                                                         AttentionKernelParams& params) {
  key.rows = params.work.tile_rows;
  key.is_planned = true;
  REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel, FindAttentionKernel(key));
  const DType products = kernel->tile.dtype;
  if (params.q_dtype != products && kernel->loading != KvLoading::kFp8) params.q_is_aligned = 0;
  if (params.new_k == nullptr) return kernel;
  const std::optional<DType> new_dtype = FromScalarType(extras.new_k->scalar_type());
  if (new_dtype == products) return kernel;
  if (key.products) {
    return absl::UnimplementedError(absl::StrCat(
        "no attention kernel on CUDA for new_k and new_v of ",
        std::string(extras.new_k->dtype().name()), " with products in ",
        std::string(DTypeName(products)), ": supported are new keys in the type of the products"));
  }
  return absl::InvalidArgumentError(absl::StrCat("new_k and new_v have the wrong dtype: expected ",
                                                 std::string(DTypeName(products)), ", got ",
                                                 std::string(extras.new_k->dtype().name())));
}

struct ChosenKernel {
  const AttentionKernelEntry* kernel;
  AttentionKernelParams params;
};

// Chooses a kernel for each schedule that may have rows; at least one.
template <typename Batch>
absl::StatusOr<absl::InlinedVector<ChosenKernel, 2>> ChooseKernels(
    const AttentionKernelKey& key, const AttentionKernelParams& params, const Batch& batch,
    const BatchSchedule& work, const AttentionExtras& extras) {
  absl::InlinedVector<ChosenKernel, 2> chosen;
  const auto add = [&](const KernelSchedule& schedule, const LaunchForm& form) -> absl::Status {
    ChosenKernel& added = chosen.emplace_back(ChosenKernel{nullptr, params});
    added.params.work = schedule;
    added.params.cluster = form.cluster;
    added.params.is_wide = form.is_wide;
    // Only the first kernel clears the tokens that belong to no row.
    if (chosen.size() > 1) added.params.num_clearable_tokens = 0;
    REPRISE_ASSIGN_OR_RETURN(added.kernel, ChooseKernel(key, extras, added.params));
    added.params.follows_sibling = chosen.size() > 1 && chosen[0].kernel->lets_sibling_in();
    return absl::OkStatus();
  };
  if (work.longest_short_row == 0 || batch.max_query_len > work.longest_short_row) {
    REPRISE_RETURN_IF_ERROR(add(work.schedule.main, work.main_form));
  }
  if (work.longest_short_row > 0) {
    REPRISE_RETURN_IF_ERROR(add(work.schedule.short_rows, work.short_form));
  }
  return chosen;
}

template <typename Batch>
absl::StatusOr<AttentionKernelKey> KeyOf(const AttentionParams& layer, const Batch& batch,
                                         const BatchSchedule& work, const at::Tensor& q,
                                         const KvLayer& kv, const AttentionExtras& extras) {
  REPRISE_ASSIGN_OR_RETURN(const DeviceLimits limits, DeviceLimitsOf(q.device().index()));
  AttentionKernelKey key = KernelKeyOf(layer, kv,
                                       {.q_dtype = *FromScalarType(q.scalar_type()),
                                        .has_custom_mask = batch.custom_mask != nullptr,
                                        .has_new_keys = extras.new_k != nullptr},
                                       work.schedule.kernels);
  key.max_shared_bytes = limits.max_shared_bytes;
  key.compute_capability = limits.compute_capability;
  return key;
}

template <typename Batch>
absl::Status Launch(const AttentionKernelKey& key, const AttentionKernelParams& params,
                    const Batch& batch, const BatchSchedule& work, const AttentionExtras& extras,
                    const at::Device& device) {
  const c10::cuda::CUDAGuard guard(device);
  REPRISE_ASSIGN_OR_RETURN(const auto kernels, ChooseKernels(key, params, batch, work, extras));
  for (const ChosenKernel& chosen : kernels) {
    const cudaError_t error = LaunchAttentionKernel(
        *chosen.kernel, chosen.params, c10::cuda::getCurrentCUDAStream(device.index()));
    REPRISE_RETURN_IF_ERROR(CudaStatus(error, "attention"));
  }
  return absl::OkStatus();
}

template <typename Batch>
absl::StatusOr<std::string> NamesOf(const AttentionKernelKey& key,
                                    const AttentionKernelParams& params, const Batch& batch,
                                    const BatchSchedule& work, const AttentionExtras& extras) {
  REPRISE_ASSIGN_OR_RETURN(const auto kernels, ChooseKernels(key, params, batch, work, extras));
  return absl::StrJoin(kernels, " + ", [](std::string* names, const ChosenKernel& chosen) {
    absl::StrAppend(names, chosen.kernel->name());
  });
}

absl::StatusOr<DType> DTypeOf(const at::Tensor& q) {
  if (const std::optional<DType> dtype = FromScalarType(q.scalar_type())) return *dtype;
  return absl::InvalidArgumentError(
      "q has the wrong dtype: expected float32, float16, bfloat16 or fp8");
}

template <typename Batch>
absl::Status CheckWork(const AttentionParams& layer, const Batch& batch, const BatchSchedule& work,
                       const at::Tensor& q) {
  REPRISE_RETURN_IF_ERROR(CheckBatchSchedule(batch, WindowOf(layer), work));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(q));
  return CheckLayer(layer, work.schedule.main, dtype);
}

void TakeBatch(const PagedBatch& batch, AttentionKernelParams& params) {
  params.query_start_loc = batch.query_start_loc;
  params.seq_lens = batch.seq_lens;
  params.key_start = batch.key_start;
  params.table_row = batch.table_row;
  params.block_table = batch.block_table;
  params.block_table_stride = batch.block_table_stride;
  params.query_positions = batch.query_positions;
  params.tail_mask = batch.tail_mask;
  params.custom_mask = batch.custom_mask;
  params.custom_mask_offset = batch.custom_mask_offset;
  params.rank = batch.key_positions.rank;
  params.world = batch.key_positions.world;
  params.interleave = batch.key_positions.interleave;
  params.num_rows = batch.num_rows;
  params.causal = batch.causal;
}

void TakeBatch(const RaggedBatch& batch, AttentionKernelParams& params) {
  params.query_start_loc = batch.query_start_loc;
  params.query_positions = batch.query_positions;
  params.custom_mask = batch.custom_mask;
  params.custom_mask_offset = batch.custom_mask_offset;
  params.world = 1;
  params.interleave = 1;
  params.num_rows = batch.num_rows;
  params.causal = batch.causal;
}

}  // namespace

absl::Status PagedAttentionCuda(const AttentionParams& layer, const PagedBatch& batch,
                                const BatchSchedule& work, const at::Tensor& q, const KvLayer& kv,
                                const AttentionOutput& output, const AttentionExtras& extras) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckWork(layer, batch, work, q));
    AttentionKernelParams params = LayerAndTensors(layer, q, kv, output, extras);
    TakeBatch(batch, params);
    REPRISE_ASSIGN_OR_RETURN(const AttentionKernelKey key,
                             KeyOf(layer, batch, work, q, kv, extras));
    return Launch(key, params, batch, work, extras, q.device());
  });
}

absl::Status RaggedAttentionCuda(const AttentionParams& layer, const RaggedBatch& batch,
                                 const BatchSchedule& work, const at::Tensor& q,
                                 const ContiguousKeys& keys, const AttentionOutput& output,
                                 const AttentionExtras& extras) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckWork(layer, batch, work, q));
    const KvLayer kv = RaggedKv(layer, keys);
    AttentionKernelParams params = LayerAndTensors(layer, q, kv, output, extras);
    TakeBatch(batch, params);
    REPRISE_ASSIGN_OR_RETURN(const AttentionKernelKey key,
                             KeyOf(layer, batch, work, q, kv, extras));
    return Launch(key, params, batch, work, extras, q.device());
  });
}

absl::StatusOr<std::string> PagedAttentionKernelName(const AttentionParams& layer,
                                                     const PagedBatch& batch,
                                                     const BatchSchedule& work, const at::Tensor& q,
                                                     const KvLayer& kv, at::Tensor& out,
                                                     const AttentionExtras& extras) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::string> {
    REPRISE_RETURN_IF_ERROR(CheckWork(layer, batch, work, q));
    AttentionKernelParams params = LayerAndTensors(layer, q, kv, {out}, extras);
    TakeBatch(batch, params);
    REPRISE_ASSIGN_OR_RETURN(const AttentionKernelKey key,
                             KeyOf(layer, batch, work, q, kv, extras));
    return NamesOf(key, params, batch, work, extras);
  });
}

absl::StatusOr<std::string> RaggedAttentionKernelName(const AttentionParams& layer,
                                                      const RaggedBatch& batch,
                                                      const BatchSchedule& work,
                                                      const at::Tensor& q,
                                                      const ContiguousKeys& keys, at::Tensor& out,
                                                      const AttentionExtras& extras) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::string> {
    REPRISE_RETURN_IF_ERROR(CheckWork(layer, batch, work, q));
    const KvLayer kv = RaggedKv(layer, keys);
    AttentionKernelParams params = LayerAndTensors(layer, q, kv, {out}, extras);
    TakeBatch(batch, params);
    REPRISE_ASSIGN_OR_RETURN(const AttentionKernelKey key,
                             KeyOf(layer, batch, work, q, kv, extras));
    return NamesOf(key, params, batch, work, extras);
  });
}

#else  // REPRISE_WITH_CUDA

absl::Status PagedAttentionCuda(const AttentionParams&, const PagedBatch& batch,
                                const BatchSchedule& work, const at::Tensor&, const KvLayer&,
                                const AttentionOutput&, const AttentionExtras&) {
  REPRISE_RETURN_IF_ERROR(CheckTileScheduleCapacity(batch, work.schedule));
  return absl::UnimplementedError("PagedAttentionCuda: this build has no CUDA");
}

absl::Status RaggedAttentionCuda(const AttentionParams&, const RaggedBatch& batch,
                                 const BatchSchedule& work, const at::Tensor&,
                                 const ContiguousKeys&, const AttentionOutput&,
                                 const AttentionExtras&) {
  REPRISE_RETURN_IF_ERROR(CheckTileScheduleCapacity(batch, work.schedule));
  return absl::UnimplementedError("RaggedAttentionCuda: this build has no CUDA");
}

absl::StatusOr<std::string> PagedAttentionKernelName(const AttentionParams&, const PagedBatch&,
                                                     const BatchSchedule&, const at::Tensor&,
                                                     const KvLayer&, at::Tensor&,
                                                     const AttentionExtras&) {
  return absl::UnimplementedError("PagedAttentionKernelName: this build has no CUDA");
}

absl::StatusOr<std::string> RaggedAttentionKernelName(const AttentionParams&, const RaggedBatch&,
                                                      const BatchSchedule&, const at::Tensor&,
                                                      const ContiguousKeys&, at::Tensor&,
                                                      const AttentionExtras&) {
  return absl::UnimplementedError("RaggedAttentionKernelName: this build has no CUDA");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
