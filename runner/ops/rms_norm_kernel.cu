// Root-mean-square norm of rows, with or without a residual.
//
// One CTA a row. Pass 1 adds the residual (if any), stores the sum and accumulates squares; pass 2
// scales and writes it. What a thread had first in pass 1, all of it in rows up to 8192 bfloat16,
// it keeps in registers, its weights too; the rest it reads again, from L1. Each thread reads in
// pass 2 what it wrote in pass 1, so `out` may be `x`. The number of threads depends on `size`
// alone: the same row gives the same bits in any batch.
//
// Bound: bytes. A row moves 2 * size elements (4 * size with a residual), the weight comes from L2:
// 256 rows of 4096 bfloat16 with a residual are 8 MB, 2 us at 4 TB/s. Below that the launch and one
// chain of load, reduction, store is what it costs, most of the launch being hidden
// (base/dependent_launch.cuh).
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements a thread reads at once: 16 bytes of them, or 1 if rows are not aligned

#include <algorithm>

#include "base/dependent_launch.cuh"
#include "runner/ops/rms_norm_kernel.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;

// The sum over the CTA, on all threads. REQUIRES: blockDim.x a multiple of the warp size; called
// once in a kernel.
__device__ float SumOverCta(float value) {
  __shared__ float warp_sums[kMaxThreads / kWarpSize];
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

// What is to be normalised, `i` vectors into the row; with a residual, its sum, stored.
template <typename T, int kVector, bool kResidual>
__device__ Vector<T, kVector> LoadSummed(const T* x, T* residual, int i) {
  Vector<T, kVector> v = LoadVector<T, kVector>(x + i * kVector);
  if constexpr (kResidual) {
    const Vector<T, kVector> r = LoadVector<T, kVector>(residual + i * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v.value[j] = FromFloat<T>(ToFloat(r.value[j]) + ToFloat(v.value[j]));
    }
    StoreVector(residual + i * kVector, v);
  }
  return v;
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

template <typename T, int kVector, bool kResidual, bool kOnePlus>
__global__ void RmsNormKernel(RmsNormParams params) {
  LetNextKernelIn();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(params.x) + row * params.x_stride;  // [size]
  T* residual = static_cast<T*>(params.residual) + row * params.residual_stride;
  const T* weight = static_cast<const T*>(params.weight);
  T* out = static_cast<T*>(params.out) + row * params.out_stride;
  const int num_vectors = params.size / kVector;
  const int first = threadIdx.x;
  const bool has_first = first < num_vectors;
  // Only brought closer: what stands there may still change.
  if (has_first) PrefetchToL2(weight + first * kVector);

  AwaitKernelBefore();
  Vector<T, kVector> kept = {}, kept_weight = {};
  float sum = 0;
  if (has_first) {
    kept = LoadSummed<T, kVector, kResidual>(x, residual, first);
    kept_weight = LoadVector<T, kVector>(weight + first * kVector);
    sum = SumOfSquares(kept);
  }
  for (int i = first + blockDim.x; i < num_vectors; i += blockDim.x) {
    sum += SumOfSquares(LoadSummed<T, kVector, kResidual>(x, residual, i));
  }
  const float scale = 1.0f / sqrtf(SumOverCta(sum) / static_cast<float>(params.size) + params.eps);

  if (has_first) {
    StoreVector(out + first * kVector, Scaled<T, kVector, kOnePlus>(kept, kept_weight, scale));
  }
  const T* input = kResidual ? residual : x;
  for (int i = first + blockDim.x; i < num_vectors; i += blockDim.x) {
    StoreVector(out + i * kVector,
                Scaled<T, kVector, kOnePlus>(LoadVector<T, kVector>(input + i * kVector),
                                             LoadVector<T, kVector>(weight + i * kVector), scale));
  }
}

template <typename T, int kVector, bool kOnePlus>
cudaError_t Launch(const RmsNormParams& params, cudaStream_t stream) {
  const int num_vectors = params.size / kVector;
  const int num_warps = (num_vectors + kWarpSize - 1) / kWarpSize;
  const int num_threads = std::min(num_warps * kWarpSize, kMaxThreads);
  const auto kernel = params.residual != nullptr ? RmsNormKernel<T, kVector, true, kOnePlus>
                                                 : RmsNormKernel<T, kVector, false, kOnePlus>;
  return LaunchDependent(kernel, params.num_rows, num_threads, 0, stream, params);
}

template <typename T, int kVector>
cudaError_t LaunchForWeight(const RmsNormParams& params, cudaStream_t stream) {
  return params.one_plus_weight ? Launch<T, kVector, true>(params, stream)
                                : Launch<T, kVector, false>(params, stream);
}

}  // namespace

cudaError_t LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0 || params.size <= 0) return cudaSuccess;
  return VisitDeviceType(params.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = params.size % kFullVector<T> == 0 &&
                         IsAlignedForVectors<T>(params.x, params.x_stride) &&
                         IsAlignedForVectors<T>(params.residual, params.residual_stride) &&
                         IsAlignedForVectors<T>(params.weight, 0) &&
                         IsAlignedForVectors<T>(params.out, params.out_stride);
    return aligned ? LaunchForWeight<T, kFullVector<T>>(params, stream)
                   : LaunchForWeight<T, 1>(params, stream);
  });
}

}  // namespace reprise
