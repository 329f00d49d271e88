// A GEMM of 1 to 128 rows of x with a large weight, on GPUs of compute capability 9.0. It is one of
// the algorithms that a GPU's LinearContext chooses from, like the kernel for up to 8 rows
// (runner/ops/skinny_linear_args.h), whose arguments it shares. Does not depend on LibTorch.
//
// A row's results depend only on the form, on in_features and on TileColumns(num_rows): they are
// bitwise identical for all numbers of rows with the same TileColumns(). Sums are float32.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"
#include "reprise/runner/ops/skinny_linear_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Whether the kernel supports the arguments with some form. x and the weight are 16-bit. `out` has
// the same dtype with 1 to kMaxWideTileRows rows, or is float32 with 1 to kMaxTileLinearRows rows.
// x and weight are aligned to 16 bytes, and their strides are multiples of 16 bytes and at least
// in_features. out_features and in_features may be any positive numbers; if gated, out_features
// must be a multiple of 16 and in_features a multiple of 64.
bool TileLinearServes(const SkinnyLinearArgs& args);

// Enqueues the kernel. args.weights has the same meaning as in LaunchSkinnyLinear(). The kernel
// starts while the previous kernel ends (base/dependent_launch.cuh). May be captured. Reads only
// the num_rows rows of x, the out_features rows of the weight, and in_features elements of each
// row. Errors: InvalidArgument if the kernel does not support the arguments or the form;
// Unimplemented if the current device does not have compute capability 9.0 or runs no cluster of
// this form; those of CudaStatus() (base/cuda_status.h).
absl::Status LaunchTileLinear(const SkinnyLinearArgs& args, const TileForm& form,
                              CUstream_st* stream);

// Returns the plan that LaunchTileLinear() would use on the current device, for reports. Errors:
// those of LaunchTileLinear().
absl::StatusOr<TileLinearPlan> TileLinearPlanOf(const SkinnyLinearArgs& args, const TileForm& form);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_
