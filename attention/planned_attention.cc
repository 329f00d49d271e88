#include "reprise/attention/planned_attention.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "reprise/base/cuda_status.h"
#endif

namespace reprise {
namespace {

constexpr int64_t kAlignment = 256;

CUstream_st* CurrentStream(at::Device device) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) return c10::cuda::getCurrentCUDAStream(device.index()).stream();
#endif
  static_cast<void>(device);
  return nullptr;
}

absl::StatusOr<bool> IsCapturing(at::Device device) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamIsCapturing(CurrentStream(device), &status), "cudaStreamIsCapturing"));
    return status != cudaStreamCaptureStatusNone;
  }
#endif
  static_cast<void>(device);
  return false;
}

// Returns the device. For a CUDA device, adds its index and sets work.device to its limits.
absl::StatusOr<at::Device> ResolveDevice(at::Device device, TileScheduleOptions& work) {
  if (device.is_cpu()) return at::Device(at::kCPU);
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    const at::DeviceIndex index = device.has_index() ? device.index() : c10::cuda::current_device();
    REPRISE_ASSIGN_OR_RETURN(work.device, DeviceLimitsOf(index));
    return at::Device(at::kCUDA, index);
  }
#endif
  static_cast<void>(work);
  return absl::InvalidArgumentError(absl::StrCat(
      "device of PlannedAttentionOptions: expected the CPU or a CUDA device, got ", device.str()));
}

absl::Status CheckSide(const char* name, const std::optional<int>& planned,
                       const std::optional<int>& side) {
  if (!planned || (side && *side <= *planned)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must not exceed the planned window: expected at most ", *planned,
                   ", got ", side ? std::to_string(*side) : "none"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlannedAttention>> PlannedAttention::Create(
    const PlannedAttentionOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<PlannedAttention>> {
    PlannedAttentionOptions own = options;
    if (own.max_custom_mask_bytes > 0) own.work.kernels.max_tier = 1;
    REPRISE_ASSIGN_OR_RETURN(own.device, ResolveDevice(options.device, own.work));
    REPRISE_ASSIGN_OR_RETURN(TileSchedulePlan plan, PlanTileSchedule(own.work));
    if (own.max_custom_mask_bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_custom_mask_bytes of PlannedAttentionOptions: expected 0 or more, got ",
                       own.max_custom_mask_bytes));
    }
    if (own.block_size < 1 || own.max_block_indices.value_or(0) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "PlannedAttentionOptions: expected a block_size of 1 or more and max_block_indices of 0 "
          "or more, got ",
          own.block_size, " and ", own.max_block_indices.value_or(0)));
    }
    if (own.device.is_cpu()) plan = {};
    return std::unique_ptr<PlannedAttention>(new PlannedAttention(own, plan));
  });
}

PlannedAttention::PlannedAttention(const PlannedAttentionOptions& options,
                                   const TileSchedulePlan& plan)
    : options_(options),
      plan_(plan),
      inputs_({.max_rows = options.work.max_rows,
               .max_tokens = options.work.max_tokens,
               .max_query_len = options.work.max_query_len,
               .max_seq_len = options.work.max_seq_len,
               .block_size = options.block_size,
               .max_block_indices = options.max_block_indices,
               .max_custom_mask_bytes = options.max_custom_mask_bytes}),
      schedule_bytes_(inputs_.num_bytes() + plan.schedule_bytes) {}

PlannedAttention::~PlannedAttention() {
  // Read only once: CUDA releases the pins of a destroyed graph on a separate thread.
  const auto graphs = pins_.count();
  LOG_IF(WARNING, graphs > 0) << graphs
                              << " captured graphs outlive the PlannedAttention that they use";
}

absl::Status PlannedAttention::CheckReplaceable(const char* name, const at::Tensor& workspace,
                                                int64_t bytes) const {
  REPRISE_RETURN_IF_ERROR(pins_.CheckNone(name));
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check(name, workspace, {AtLeast(bytes)}, at::kByte));
  REPRISE_RETURN_IF_ERROR(CheckDevice(name, workspace, options_.device));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, workspace));
  const int64_t alignment = options_.device.is_cpu() ? int64_t{alignof(int32_t)} : kAlignment;
  const int64_t beyond = reinterpret_cast<intptr_t>(workspace.const_data_ptr()) % alignment;
  if (beyond == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be aligned: expected a multiple of ",
                                                 alignment, " bytes, got ", beyond, " beyond one"));
}

absl::Status PlannedAttention::SetScheduleWorkspace(at::Tensor workspace) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckReplaceable("schedule_workspace", workspace, schedule_bytes_));
    schedule_workspace_ = std::move(workspace);
    MakeMap();
    return absl::OkStatus();
  });
}

absl::Status PlannedAttention::SetPartialWorkspace(at::Tensor workspace) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckReplaceable("partial_workspace", workspace, plan_.partial_bytes));
    partial_workspace_ = std::move(workspace);
    MakeMap();
    return absl::OkStatus();
  });
}

absl::Status PlannedAttention::Reset() {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(pins_.CheckNone("workspaces"));
    schedule_workspace_ = partial_workspace_ = at::Tensor();
    MakeMap();
    return absl::OkStatus();
  });
}

// Also invalidates the plan. On a GPU, views the schedule in the workspaces once all are set.
void PlannedAttention::MakeMap() {
  planned_.reset();
  schedule_ = {};
  work_ = {};
  if (options_.device.is_cpu() || !CheckIsSet().ok()) return;
  auto* const base = static_cast<std::byte*>(schedule_workspace_.mutable_data_ptr());
  schedule_ =
      MakeTileSchedule(plan_, base + inputs_.num_bytes(),
                       plan_.partial_bytes > 0 ? partial_workspace_.mutable_data_ptr() : nullptr);
}

absl::Status PlannedAttention::CheckIsSet() const {
  if (!schedule_workspace_.defined()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "SetScheduleWorkspace() must be called before Plan(): expected a workspace of ",
        schedule_bytes_, " bytes, got none"));
  }
  if (partial_workspace_.defined() || plan_.partial_bytes == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("SetPartialWorkspace() must be called before Plan(): expected a workspace of ",
                   plan_.partial_bytes, " bytes, got none"));
}

absl::StatusOr<uint64_t> PlannedAttention::PinIfCaptured(GraphPins& pins) const {
  if (options_.device.is_cpu()) return 0;
  return pins.PinIfCaptured(CurrentStream(options_.device));
}

absl::Status PlannedAttention::Plan(const PlanInputs& inputs) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckIsSet());
#ifdef REPRISE_WITH_CUDA
    const c10::OptionalDeviceGuard guard(options_.device);
#endif
    REPRISE_ASSIGN_OR_RETURN(const PlanShape shape, inputs_.Check(inputs, options_.device));
    if (lone_run_pins_.count() > 0 && planned_ && *planned_ != shape) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the batch must keep its size while captured graphs use the plan: expected ",
          planned_->num_rows, " rows and ", planned_->num_tokens,
          " tokens (pad with rows of seq_len 0), got ", shape.num_rows, " and ", shape.num_tokens));
    }
    REPRISE_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(options_.device));
    if (const char* name = FirstInputOnHost(inputs); name != nullptr && capturing) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, " must be on the device where Plan() is captured: expected ",
                       options_.device.str(), ", got cpu"));
    }
    REPRISE_ASSIGN_OR_RETURN(const uint64_t capture, PinIfCaptured(pins_));
    // If the copy fails, no plan is valid. While graphs with a lone Run() exist, the planned size
    // stays, because later plans must match it.
    if (lone_run_pins_.count() == 0) planned_.reset();
    CUstream_st* const stream = CurrentStream(options_.device);
    REPRISE_RETURN_IF_ERROR(inputs_.Copy(inputs, shape, schedule_workspace_, stream));
#ifdef REPRISE_WITH_CUDA
    if (!options_.device.is_cpu()) {
      PagedBatch batch = inputs_.BatchOf(shape, schedule_workspace_);
      batch.causal = options_.causal;
      REPRISE_ASSIGN_OR_RETURN(work_,
                               LaunchTileSchedule(batch, options_.window, schedule_, stream));
    }
#endif
    planned_ = shape;
    plan_capture_ = capture;
    return absl::OkStatus();
  });
}

absl::Status PlannedAttention::CheckLayer(const AttentionParams& layer) const {
  REPRISE_RETURN_IF_ERROR(CheckSide("window_left", options_.window.left, layer.window_left));
  return CheckSide("window_right", options_.window.right, layer.window_right);
}

absl::Status PlannedAttention::Run(const AttentionParams& layer, const at::Tensor& q,
                                   const KvLayer& kv, const AttentionOutput& output,
                                   const AttentionExtras& extras) {
  return CatchTorch([&]() -> absl::Status {
    if (!planned_) {
      return absl::FailedPreconditionError(
          "Plan() must be called before Run(): expected a plan, got none");
    }
    REPRISE_RETURN_IF_ERROR(CheckLayer(layer));
    if (kv.block_size != options_.block_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv.block_size must equal the planned block_size: ", "expected ",
                       options_.block_size, ", got ", kv.block_size));
    }
    REPRISE_ASSIGN_OR_RETURN(const uint64_t capture, PinIfCaptured(pins_));
    if (plan_capture_ != 0 && capture != plan_capture_) {
      return absl::FailedPreconditionError(
          "Run() requires a plan that has run: Plan() was captured in a graph. Call Run() in the "
          "same capture, or call Plan() again");
    }
    if (capture != 0 && plan_capture_ == 0) {
      REPRISE_RETURN_IF_ERROR(PinIfCaptured(lone_run_pins_).status());
    }
    PagedBatch batch = inputs_.BatchOf(*planned_, schedule_workspace_);
    batch.causal = options_.causal;
    return PagedAttention(layer, batch, work_, q, kv, output, extras);
  });
}

}  // namespace reprise
