// A GEMM of 1 to 64 rows of x with a large 8-bit weight, on GPUs of compute capability 9.0. This is
// the kernel of runner/ops/few_rows/tile_linear.h for 8-bit weights. It shares its arguments with
// fp8_linear.h and is faster for more than a few rows. Does not depend on LibTorch.
//
// A row's results depend only on the form, in_features, the number of scales per row and
// TileColumns(num_rows): they are bitwise identical for all numbers of rows with the same
// TileColumns(). Sums are float32. A NaN value counts as 480 or -480.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_tile_plan.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Whether the kernel supports the arguments with some form: 1 to kMaxTileLinearRows 16-bit rows;
// `out` of the same dtype or float32; x and weight aligned to 16 bytes, with strides that are
// multiples of 16 bytes and at least in_features; num_groups as in Fp8Weight. out_features and
// in_features may be any positive numbers.
bool Fp8TileLinearServes(const Fp8LinearArgs& args);

// Enqueues the kernel. args.weights applies to values and scales. The kernel starts while the
// previous kernel ends (base/dependent_launch.cuh). May be captured. Reads only the num_rows rows
// of x, the out_features rows of the weight, and in_features elements of each row. Errors:
// InvalidArgument if the kernel does not support the arguments or the form; Unimplemented if the
// current device does not have compute capability 9.0 or runs no cluster of this form; those of
// CudaStatus() (base/cuda_status.h).
absl::Status LaunchFp8TileLinear(const Fp8LinearArgs& args, const TileForm& form,
                                 CUstream_st* stream);

// Returns the plan that LaunchFp8TileLinear() would use on the current device. Errors: those of
// LaunchFp8TileLinear().
absl::StatusOr<Fp8TilePlan> Fp8TilePlanOf(const Fp8LinearArgs& args, const TileForm& form);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_
