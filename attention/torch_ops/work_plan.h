// A work map's plan as a tensor: torch.ops.reprise.work_map_plan returns it, and operators take it
// as `plan`.
//
// A plan is int64 on the CPU, so that reading it never waits for a device. Its first element is the
// workspace size in bytes; the others are the WorkMapOptions it was made with.
//
// Thread safety: pure functions.

#ifndef REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_
#define REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"

namespace reprise {

// Errors: those of PlanWorkMap().
absl::StatusOr<at::Tensor> MakePlanTensor(const WorkMapOptions& options);

// The options that `plan` was made with. Errors: InvalidArgument if it is not such a tensor.
absl::StatusOr<WorkMapOptions> ReadPlanTensor(const at::Tensor& plan);

// Uninitialised workspace for `plan`, aligned to 256 bytes. Errors: those of ReadPlanTensor().
absl::StatusOr<at::Tensor> AllocateWorkspace(const at::Tensor& plan, at::Device device);

// The map over `workspace`, uint8 of at least plan[0] bytes, aligned to 256 bytes, on `device`.
// Errors: InvalidArgument naming `plan` or `workspace`.
absl::StatusOr<WorkMap> WorkMapOver(const at::Tensor& plan, const at::Tensor& workspace,
                                    at::Device device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_WORK_PLAN_H_
