#include "reprise/attention/torch_ops/device_work.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/attention/checks.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/attention/torch_ops/work_plan.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

template <typename Batch>
absl::StatusOr<BatchSchedule> BuildOn(const Batch& batch, const LayerWindow& window,
                                      const TileSchedule& schedule, at::Device device) {
  if (device.is_cpu()) return TileScheduleOnHost(batch, window, schedule);
#ifdef REPRISE_WITH_CUDA
  const c10::cuda::CUDAGuard guard(device);
  return LaunchTileSchedule(batch, window, schedule,
                            c10::cuda::getCurrentCUDAStream(device.index()).stream());
#else
  return absl::UnimplementedError(
      absl::StrCat("tensors must be on the CPU in a build without CUDA, got ", device.str()));
#endif
}

absl::Status CheckBatch(const AttentionParams& layer, const PagedBatch& batch) {
  return CheckBatchFields(layer, batch);
}
absl::Status CheckBatch(const AttentionParams&, const RaggedBatch& batch) {
  return CheckBatchFields(batch);
}

template <typename Batch>
absl::StatusOr<BatchSchedule> WorkForCall(const WorkTensors& work, const KernelChoice& kernels,
                                          const AttentionParams& layer, const Batch& batch,
                                          const at::Tensor& q, at::Tensor& keep_alive) {
  if (work.plan.has_value() != work.workspace.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "plan and workspace must be given together: expected both or neither, got only ",
        work.plan ? "plan" : "workspace"));
  }
  if (work.plan) {
    REPRISE_ASSIGN_OR_RETURN(TileSchedule schedule,
                             TileScheduleOver(*work.plan, *work.workspace, q.device()));
    if (kernels.products) schedule.kernels.products = kernels.products;
    schedule.kernels.max_tier = std::min(schedule.kernels.max_tier, kernels.max_tier);
    return WorkOf(batch, WindowOf(layer), schedule);
  }
  if (q.is_cpu()) return BatchSchedule{};
  // The schedule is built before the call checks the following.
  REPRISE_RETURN_IF_ERROR(CheckAttentionParams(layer));
  REPRISE_RETURN_IF_ERROR(CheckBatch(layer, batch));
  REPRISE_RETURN_IF_ERROR(CheckDType(
      "q", q, {at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2}));
  REPRISE_ASSIGN_OR_RETURN(const DeviceLimits limits, LimitsOf(q.device()));
  REPRISE_ASSIGN_OR_RETURN(
      const at::Tensor plan,
      MakePlanTensor({.dtype = *FromScalarType(q.scalar_type()),
                      .num_q_heads = layer.num_q_heads,
                      .num_kv_heads = layer.num_kv_heads,
                      .head_dim_qk = layer.head_dim_qk,
                      .head_dim_v = layer.head_dim_v,
                      .max_rows = batch.num_rows,
                      .max_tokens = batch.num_tokens,
                      .max_query_len = batch.max_query_len,
                      .max_seq_len = batch.max_seq_len,
                      .device = limits,
                      .mode = work.deterministic ? TileScheduleMode::kDeterministic
                                                 : TileScheduleMode::kBalanced,
                      .kernels = kernels}));
  REPRISE_ASSIGN_OR_RETURN(keep_alive, AllocateWorkspace(plan, q.device()));
  REPRISE_ASSIGN_OR_RETURN(TileSchedule schedule, TileScheduleOver(plan, keep_alive, q.device()));
  // The schedule is built and used with the same batch.
  if (!work.deterministic) schedule.row_assignment = RowAssignment::kByBatch;
  return BuildOn(batch, WindowOf(layer), schedule, q.device());
}

}  // namespace

absl::StatusOr<DeviceLimits> LimitsOf(at::Device device) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    return DeviceLimitsOf(device.has_index() ? device.index() : c10::cuda::current_device());
  }
#endif
  static_cast<void>(device);
  return DeviceLimits{};
}

absl::Status BuildWork(const PagedBatch& batch, const LayerWindow& window,
                       const TileSchedule& schedule, at::Device device) {
  REPRISE_RETURN_IF_ERROR(
      CheckBatchFields({.window_left = window.left, .window_right = window.right}, batch));
  return BuildOn(batch, window, schedule, device).status();
}

absl::Status BuildWork(const RaggedBatch& batch, const LayerWindow& window,
                       const TileSchedule& schedule, at::Device device) {
  REPRISE_RETURN_IF_ERROR(CheckBatchFields(batch));
  return BuildOn(batch, window, schedule, device).status();
}

absl::StatusOr<BatchSchedule> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                      const AttentionParams& layer, const PagedBatch& batch,
                                      const at::Tensor& q, at::Tensor& keep_alive) {
  return WorkForCall(work, kernels, layer, batch, q, keep_alive);
}

absl::StatusOr<BatchSchedule> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                      const AttentionParams& layer, const RaggedBatch& batch,
                                      const at::Tensor& q, at::Tensor& keep_alive) {
  return WorkForCall(work, kernels, layer, batch, q, keep_alive);
}

}  // namespace reprise
