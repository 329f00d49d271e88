// A matrix product of 1 to 128 rows of x with a large weight, on GPUs of compute capability 9.0: one
// of the algorithms that a LinearContext of a GPU chooses from, beside the kernel for up to 8 rows
// (runner/ops/skinny_linear_args.h), whose arguments it shares. No LibTorch.
//
// A row's bits depend on the form, on in_features and on TileColumns(num_rows): they are the same
// for all numbers of rows that share it. Sums are float32.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"
#include "reprise/runner/ops/skinny_linear_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Whether the kernel can compute this with some form: 1 to kMaxTileLinearRows rows of 16 bits, out
// of the same dtype or float32, or up to kMaxWideTileRows rows and out of the same dtype, x and weight at multiples of 16 bytes with strides that are
// multiples of 16 bytes and at least in_features. out_features and in_features may have any
// positive value; if gated, multiples of 16 and of 64.
bool TileLinearServes(const SkinnyLinearArgs& args);

// Enqueues the kernel. args.weights is honoured as by LaunchSkinnyLinear(); the kernel starts while
// the kernel before it ends (base/dependent_launch.cuh). May be captured. Reads nothing beyond the
// num_rows rows of x, the out_features rows of the weight and the in_features of each. Errors:
// InvalidArgument if the kernel does not serve the arguments or the form; Unimplemented if the
// current device is not of compute capability 9.0; those of CudaStatus() (base/cuda_status.h).
absl::Status LaunchTileLinear(const SkinnyLinearArgs& args, const TileForm& form,
                              CUstream_st* stream);

// The plan by which LaunchTileLinear() would run on the current device, for reports. Errors: the
// same.
absl::StatusOr<TileLinearPlan> TileLinearPlanOf(const SkinnyLinearArgs& args, const TileForm& form);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_LINEAR_H_
