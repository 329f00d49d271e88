// Device functions shared by the kernels that normalise rows. A CTA processes one row, and a thread
// every blockDim.x-th vector of the row. Kernels with the same number of threads and the same
// kVector therefore compute bitwise identical results.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements per load: a vector of 16 bytes, or 1 element if rows are not aligned

#ifndef REPRISE_RUNNER_OPS_NORMS_NORM_ROWS_CUH_
#define REPRISE_RUNNER_OPS_NORMS_NORM_ROWS_CUH_

#include <algorithm>

#include "reprise/runner/ops/norms/norm_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {

inline constexpr int kMaxNormThreads = 1024;
inline constexpr int kMaxNormWarps = kMaxNormThreads / 32;

// Returns the number of threads of a CTA for a row of `num_vectors` vectors.
inline int NumNormThreads(int num_vectors) {
  return std::min((num_vectors + 31) / 32 * 32, kMaxNormThreads);
}

// Returns the sum over the CTA to all threads. REQUIRES: blockDim.x is a multiple of the warp size;
// `warp_sums` is shared memory for kMaxNormWarps floats that no other call uses.
__device__ inline float SumOverCta(float value, float* warp_sums) {
  constexpr int kWarpSize = 32;
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  const int num_warps = blockDim.x / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) warp_sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  value = lane < num_warps ? warp_sums[lane] : 0.0f;
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

template <typename T, int kVector>
__device__ float SumOfSquares(const Vector<T, kVector>& v) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float value = ToFloat(v.value[j]);
    sum += value * value;
  }
  return sum;
}

template <typename T, int kVector, bool kOnePlus>
__device__ Vector<T, kVector> Scaled(Vector<T, kVector> v, const Vector<T, kVector>& weight,
                                     float scale) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float normalised = ToFloat(v.value[j]) * scale;
    if constexpr (kOnePlus) {
      v.value[j] = FromFloat<T>(normalised * (1.0f + ToFloat(weight.value[j])));
    } else {
      v.value[j] = FromFloat<T>(RoundTo<T>(normalised) * ToFloat(weight.value[j]));
    }
  }
  return v;
}

// Whether rows can be read in full vectors. Null pointers count as aligned.
template <typename T>
bool IsAlignedForNorm(const NormArgs& args) {
  return args.size % kFullVector<T> == 0 && IsAlignedForVectors<T>(args.x, args.x_stride) &&
         IsAlignedForVectors<T>(args.residual, args.residual_stride) &&
         IsAlignedForVectors<T>(args.weight, 0) && IsAlignedForVectors<T>(args.bias, 0) &&
         IsAlignedForVectors<T>(args.out, args.out_stride);
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_NORMS_NORM_ROWS_CUH_
