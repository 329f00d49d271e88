// A matrix product of 1 to 64 rows of x with a large weight of 8 bits, on GPUs of compute
// capability 9.0: the kernel of runner/ops/few_rows/tile_linear.h for such weights, quicker than
// that of fp8_linear.h, whose arguments it shares, from a few rows on. No LibTorch.
//
// A row's bits depend on the form, in_features, the number of scales of a row, and
// TileColumns(num_rows): they are the same for all numbers of rows that share it. Sums are float32.
// NaN among the values counts as 480, or -480.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_tile_plan.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Whether the kernel can compute this with some form: 1 to kMaxTileLinearRows rows of 16 bits, out
// of the same dtype or float32, x and weight at multiples of 16 bytes with strides that are
// multiples of 16 bytes and at least in_features. out_features and in_features may have any
// positive value.
bool Fp8TileLinearServes(const Fp8LinearArgs& args);

// Enqueues the kernel. args.weights holds for values and scales; the kernel starts while the kernel
// before it ends (base/dependent_launch.cuh). May be captured. Reads nothing beyond the num_rows
// rows of x, the out_features rows of the weight and the in_features of each. Errors:
// InvalidArgument if the kernel does not serve the arguments or the form; Unimplemented if the
// current device is not of compute capability 9.0; those of CudaStatus() (base/cuda_status.h).
absl::Status LaunchFp8TileLinear(const Fp8LinearArgs& args, const TileForm& form,
                                 CUstream_st* stream);

// The plan by which LaunchFp8TileLinear() would run on the current device. Errors: the same.
absl::StatusOr<Fp8TilePlan> Fp8TilePlanOf(const Fp8LinearArgs& args, const TileForm& form);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_TILE_LINEAR_H_
