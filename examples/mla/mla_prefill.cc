#include "examples/mla/mla_prefill.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <utility>

#include "attention/attention.h"
#include "attention/merge_states.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "attention/merge_states_kernel.h"
#include "attention/work_map_cuda.h"
#include "attention/work_map_plan.h"
#include "attention/work_map_rows.h"
#include "base/cuda_status.h"
#endif

namespace reprise {
namespace {

// Keys of each row that are older than its queries: seq_len - query_len.
at::Tensor CachedLens(const PagedBatch& rows, c10::Device device) {
  const auto view = [&](const int32_t* array, int64_t size) {
    return at::from_blob(const_cast<int32_t*>(array), {size},
                         at::TensorOptions(device).dtype(at::kInt));
  };
  const at::Tensor loc = view(rows.query_start_loc, rows.num_rows + 1);
  const at::Tensor query_lens = loc.narrow(0, 1, rows.num_rows) - loc.narrow(0, 0, rows.num_rows);
  return (view(rows.seq_lens, rows.num_rows) - query_lens).clamp_min(0);
}

#ifdef REPRISE_WITH_CUDA
WorkMapOptions PlanFor(const AttentionParams& params, const MlaPrefillOptions& options,
                       const PagedBatch& rows) {
  return {.dtype = options.dtype,
          .num_q_heads = params.num_q_heads,
          .num_kv_heads = params.num_kv_heads,
          .head_dim_qk = params.head_dim_qk,
          .head_dim_v = params.head_dim_v,
          .max_rows = rows.num_rows,
          .max_tokens = rows.num_tokens,
          .max_query_len = rows.max_query_len,
          .max_seq_len = rows.max_seq_len};
}
#endif

TokenView ViewOf(const at::Tensor& heads) {
  return {.data = heads.mutable_data_ptr(),
          .dtype = *FromScalarType(heads.scalar_type()),
          .token_stride = heads.stride(0),
          .head_stride = heads.stride(1)};
}

}  // namespace

MlaPrefill::MlaPrefill(const MlaPrefillOptions& options, const PagedBatch& rows)
    : options_(options), cached_(rows) {
  cached_lens_ = CachedLens(rows, options.device);
  cached_.seq_lens = cached_lens_.const_data_ptr<int32_t>();
  cached_.causal = false;  // all of them are older
  fresh_ = {.query_start_loc = rows.query_start_loc,
            .key_start_loc = rows.query_start_loc,
            .num_rows = rows.num_rows,
            .num_tokens = rows.num_tokens,
            .num_keys = rows.num_tokens,
            .max_query_len = rows.max_query_len,
            .max_seq_len = rows.max_query_len};
}

absl::StatusOr<MlaPrefill> MlaPrefill::Create(const MlaPrefillOptions& options,
                                              const PagedBatch& rows) {
  return CatchTorchOr([&]() -> absl::StatusOr<MlaPrefill> {
    MlaPrefill prefill(options, rows);
    if (!options.device.is_cpu()) REPRISE_RETURN_IF_ERROR(prefill.BuildWorkMaps());
    return prefill;
  });
}

absl::Status MlaPrefill::BuildWorkMaps() {
#ifdef REPRISE_WITH_CUDA
  const auto plan = [&](const AttentionParams& params, at::Tensor& memory,
                        WorkMap& map) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const WorkMapPlan made,
                             PlanWorkMap(PlanFor(params, options_, cached_)));
    memory = at::empty({made.workspace_bytes}, at::TensorOptions(options_.device).dtype(at::kByte));
    map = MakeWorkMap(made, memory.mutable_data_ptr());
    return absl::OkStatus();
  };
  REPRISE_RETURN_IF_ERROR(plan(options_.absorbed, cached_work_memory_, cached_work_));
  REPRISE_RETURN_IF_ERROR(plan(options_.expanded, fresh_work_memory_, fresh_work_));
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(options_.device.index());
  REPRISE_RETURN_IF_ERROR(
      LaunchBuildWorkMap(cached_, WindowOf(options_.absorbed), cached_work_, stream));
  return LaunchBuildWorkMap(fresh_, WindowOf(options_.expanded), fresh_work_, stream);
#else
  return absl::UnimplementedError("device must be cpu in a build without CUDA");
#endif
}

absl::Status MlaPrefill::AttendToNew(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     PartialAttention& part) const {
  return RaggedAttention(options_.expanded, fresh_, fresh_work_, q, k, v, part.out, &part.lse);
}

absl::Status MlaPrefill::AttendToCached(const at::Tensor& q, const KvLayer& kv,
                                        PartialAttention& part) const {
  return PagedAttention(options_.absorbed, cached_, cached_work_, q, kv, part.out, &part.lse);
}

absl::Status MlaPrefill::Merge(const PartialAttention& a, const PartialAttention& b,
                               const at::Tensor& out) const {
  MergeStatesParams params = {.num_parts = 2,
                              .part = ViewOf(a.out),
                              .out = ViewOf(out),
                              .num_tokens = static_cast<int>(out.size(0)),
                              .num_heads = static_cast<int>(out.size(1)),
                              .head_dim = static_cast<int>(out.size(2))};
  params.part_out[0] = a.out.const_data_ptr();
  params.part_out[1] = b.out.const_data_ptr();
  params.part_lse[0] = a.lse.const_data_ptr<float>();
  params.part_lse[1] = b.lse.const_data_ptr<float>();
  params.part_lse_view = {.token_stride = a.lse.stride(0), .head_stride = a.lse.stride(1)};
#ifdef REPRISE_WITH_CUDA
  if (out.is_cuda()) {
    REPRISE_RETURN_IF_ERROR(CheckMergeStates(params));
    return CudaStatus(
        LaunchMergeStates(params, c10::cuda::getCurrentCUDAStream(options_.device.index())),
        "LaunchMergeStates");
  }
#endif
  return MergeStates(params);
}

}  // namespace reprise
