// Layer norm of rows, or of sums of two.
//
// One CTA a row, three passes: the sum (of which, with a residual, the row is stored in `out`
// first), the squares of differences to the mean, and the result. The second and third read from L1
// what the thread itself read or wrote in the first, so `out` may be `x` or the residual. The
// number of threads depends on `size` alone: the same row gives the same bits in any batch.
//
// Bound: bytes. A row moves 2 * size elements (3 * size with a residual), weight and bias come from
// L2: 256 rows of 1024 bfloat16 with a residual are 1.6 MB, 0.4 us at 4 TB/s. So the launch and two
// chains of load and reduction are what it costs.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements a thread reads at once: 16 bytes of them, or 1 if rows are not aligned

#include <algorithm>

#include "runner/ops/layer_norm_kernel.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarpSize = 32;
constexpr int kMaxThreads = 1024;

// The sum over the CTA, on all threads. REQUIRES: blockDim.x a multiple of the warp size;
// `warp_sums` is shared memory of kMaxThreads / kWarpSize, another one in each call.
__device__ float SumOverCta(float value, float* warp_sums) {
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

template <typename T, int kVector, bool kResidual>
__global__ void LayerNormKernel(LayerNormParams params) {
  __shared__ float sums[kMaxThreads / kWarpSize];
  __shared__ float square_sums[kMaxThreads / kWarpSize];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(params.x) + row * params.x_stride;  // [size]
  const T* residual = static_cast<const T*>(params.residual) + row * params.residual_stride;
  const T* weight = static_cast<const T*>(params.weight);
  const T* bias = static_cast<const T*>(params.bias);
  T* out = static_cast<T*>(params.out) + row * params.out_stride;
  const int num_vectors = params.size / kVector;
  const float size = static_cast<float>(params.size);

  float sum = 0;
  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    Vector<T, kVector> v = LoadVector<T, kVector>(x + i * kVector);
    if constexpr (kResidual) {
      const Vector<T, kVector> r = LoadVector<T, kVector>(residual + i * kVector);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        v.value[j] = FromFloat<T>(ToFloat(v.value[j]) + ToFloat(r.value[j]));
      }
      StoreVector(out + i * kVector, v);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += ToFloat(v.value[j]);
  }
  const float mean = SumOverCta(sum, sums) / size;

  const T* input = kResidual ? out : x;
  float squares = 0;
  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    const Vector<T, kVector> v = LoadVector<T, kVector>(input + i * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float difference = ToFloat(v.value[j]) - mean;
      squares += difference * difference;
    }
  }
  const float scale = 1.0f / sqrtf(SumOverCta(squares, square_sums) / size + params.eps);

  for (int i = threadIdx.x; i < num_vectors; i += blockDim.x) {
    Vector<T, kVector> v = LoadVector<T, kVector>(input + i * kVector);
    const Vector<T, kVector> w = LoadVector<T, kVector>(weight + i * kVector);
    const Vector<T, kVector> b = LoadVector<T, kVector>(bias + i * kVector);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v.value[j] = FromFloat<T>((ToFloat(v.value[j]) - mean) * scale * ToFloat(w.value[j]) +
                                ToFloat(b.value[j]));
    }
    StoreVector(out + i * kVector, v);
  }
}

template <typename T, int kVector>
cudaError_t Launch(const LayerNormParams& params, cudaStream_t stream) {
  const int num_vectors = params.size / kVector;
  const int num_warps = (num_vectors + kWarpSize - 1) / kWarpSize;
  const int num_threads = std::min(num_warps * kWarpSize, kMaxThreads);
  if (params.residual != nullptr) {
    LayerNormKernel<T, kVector, true><<<params.num_rows, num_threads, 0, stream>>>(params);
  } else {
    LayerNormKernel<T, kVector, false><<<params.num_rows, num_threads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchLayerNorm(const LayerNormParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0 || params.size <= 0) return cudaSuccess;
  return VisitDeviceType(params.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned =
        params.size % kFullVector<T> == 0 && IsAlignedForVectors<T>(params.x, params.x_stride) &&
        IsAlignedForVectors<T>(params.residual, params.residual_stride) &&
        IsAlignedForVectors<T>(params.weight, 0) && IsAlignedForVectors<T>(params.bias, 0) &&
        IsAlignedForVectors<T>(params.out, params.out_stride);
    return aligned ? Launch<T, kFullVector<T>>(params, stream) : Launch<T, 1>(params, stream);
  });
}

}  // namespace reprise
