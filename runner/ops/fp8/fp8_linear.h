// Products with weights of 8 bits: fp8 (e4m3) values, each times the float32 scale of its row or of
// its group of 128 in_features. x has 16 bits. The kernels on which Linear's products of such
// weights are built (runner/ops/linear.h, Linear::CreateScaled()). No LibTorch.
//
// NaN among the values counts as 480, or -480.

#ifndef REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_
#define REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/ops/skinny_linear_args.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// in_features that share a scale, unless a row has one scale.
inline constexpr int kFp8Group = 128;

// A weight on the device. Strides are in elements, from row to row; rows are dense.
struct Fp8Weight {
  const uint8_t* values = nullptr;  // [out_features, in_features]
  int64_t stride = 0;
  const float* scales = nullptr;  // [out_features, num_groups]
  int64_t scales_stride = 0;
  int num_groups = 1;  // 1, or one for every kFp8Group in_features, the last group may be partial
  int out_features = 0;
  int in_features = 0;
};

// out = x weight^T + bias.
struct Fp8LinearArgs {
  DType dtype = DType::kBFloat16;      // of x and bias: float16 or bfloat16
  DType out_dtype = DType::kBFloat16;  // the same, or float32
  const void* x = nullptr;             // [num_rows, in_features]
  int64_t x_stride = 0;
  Fp8Weight weight;
  const void* bias = nullptr;  // [out_features]; null: none
  void* out = nullptr;         // [num_rows, out_features]
  int64_t out_stride = 0;
  int num_rows = 0;
  SkinnyWeights weights = SkinnyWeights::kAfterKernelBefore;
};

// Rows of x that one reading of the weight serves.
inline constexpr int kFp8PassRows = 32;

// Whether LaunchFp8Linear() can compute this: out_features a multiple of 16, in_features of 1024,
// rows of x and of the weight at multiples of 16 bytes.
bool Fp8LinearServes(const Fp8LinearArgs& args);

// Enqueues kernels, one for every kFp8PassRows rows, that start while the kernel before them ends
// (base/dependent_launch.cuh); args.weights holds for values and scales. Sums are float32, and a
// row's bits do not depend on the number of rows. Needs compute capability 8.0. May be captured.
// Errors: InvalidArgument if the kernel does not serve the arguments; those of CudaStatus()
// (base/cuda_status.h).
absl::Status LaunchFp8Linear(const Fp8LinearArgs& args, CUstream_st* stream);

// Enqueues a kernel that writes the weight's rows [first_row, first_row + num_rows), values times
// scales rounded to `dtype` (float32, float16 or bfloat16), to `out` [num_rows, in_features],
// dense. A plain launch. May be captured. Errors: InvalidArgument, naming the argument; those of
// CudaStatus().
absl::Status LaunchDequantise(const Fp8Weight& weight, int first_row, int num_rows, DType dtype,
                              void* out, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_FP8_LINEAR_H_
