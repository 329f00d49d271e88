// Tile schedules for the device of an operator's tensors. A schedule is built on the current stream
// of a GPU, or by the host form.

#ifndef REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_
#define REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"

namespace reprise {

// Returns the limits of a GPU, or of the current GPU if `device` has no index. Returns the defaults
// for the CPU.
absl::StatusOr<DeviceLimits> LimitsOf(at::Device device);

// Fills `schedule` from the batch, on the device of the batch.
absl::Status BuildWork(const PagedBatch& batch, const LayerWindow& window,
                       const TileSchedule& schedule, at::Device device);
absl::Status BuildWork(const RaggedBatch& batch, const LayerWindow& window,
                       const TileSchedule& schedule, at::Device device);

// The caller's plan and workspace. Either both are given or neither.
struct WorkTensors {
  std::optional<at::Tensor> plan, workspace;
  bool deterministic = false;  // applies to schedules that WorkFor() makes
};

// Returns the schedule for the attention of `layer` over `batch` on q's device, for the kernels
// that the call requires. Uses the caller's schedule if it is given. Otherwise allocates a
// schedule, which `keep_alive` holds, and builds it. The CPU needs no schedule.
absl::StatusOr<BatchSchedule> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                      const AttentionParams& layer, const PagedBatch& batch,
                                      const at::Tensor& q, at::Tensor& keep_alive);
absl::StatusOr<BatchSchedule> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                      const AttentionParams& layer, const RaggedBatch& batch,
                                      const at::Tensor& q, at::Tensor& keep_alive);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_
