// A tile schedule's plan as a tensor. torch.ops.reprise.tile_schedule_plan returns it, and
// operators take it as `plan`.
//
// A plan is an int64 tensor on the CPU, so reading it never waits for a device. Its first element
// is the size of the workspace in bytes. The other elements are the TileScheduleOptions of the
// plan.
//
// Thread safety: pure functions.

#ifndef REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_
#define REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {

// Returns the plan for `options`.
// Errors: see PlanTileSchedule().
absl::StatusOr<at::Tensor> MakePlanTensor(const TileScheduleOptions& options);

// Returns the options from which `plan` was made.
// Errors: InvalidArgument if `plan` is not a plan tensor.
absl::StatusOr<TileScheduleOptions> ReadPlanTensor(const at::Tensor& plan);

// Allocates an uninitialised workspace for `plan`, aligned to 256 bytes.
// Errors: see ReadPlanTensor().
absl::StatusOr<at::Tensor> AllocateWorkspace(const at::Tensor& plan, at::Device device);

// Returns the schedule over `workspace`, a uint8 tensor of at least plan[0] bytes, aligned to 256
// bytes, on `device`.
// Errors: InvalidArgument that names `plan` or `workspace`.
absl::StatusOr<TileSchedule> TileScheduleOver(const at::Tensor& plan, const at::Tensor& workspace,
                                              at::Device device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_
