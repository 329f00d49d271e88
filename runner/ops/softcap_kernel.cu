// x = cap * tanh(x / cap), in place.
//
// A CTA computes kThreads vectors of one row; the rows' CTAs lie along x, which may be long.
//
// Bound: bytes, twice x: 64 rows of 256,000 float32 are 131 MB, 33 us at 4 TB/s. A row alone: the
// launch.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements of a thread: 16 bytes of them, or 1 if rows are not aligned

#include "runner/ops/softcap_kernel.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) SoftcapKernel(SoftcapParams params) {
  const int64_t row = blockIdx.x;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (first >= params.size) return;
  T* x = static_cast<T*>(params.x) + row * params.stride + first;
  Vector<T, kVector> v = LoadVector<T, kVector>(x);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    v.value[j] = FromFloat<T>(params.cap * tanhf(ToFloat(v.value[j]) / params.cap));
  }
  StoreVector(x, v);
}

template <typename T, int kVector>
cudaError_t Launch(const SoftcapParams& params, cudaStream_t stream) {
  const int num_vectors = params.size / kVector;
  const dim3 grid(params.num_rows, (num_vectors + kThreads - 1) / kThreads);
  SoftcapKernel<T, kVector><<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchSoftcap(const SoftcapParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0 || params.size <= 0) return cudaSuccess;
  return VisitDeviceType(params.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned =
        params.size % kFullVector<T> == 0 && IsAlignedForVectors<T>(params.x, params.stride);
    return aligned ? Launch<T, kFullVector<T>>(params, stream) : Launch<T, 1>(params, stream);
  });
}

}  // namespace reprise
