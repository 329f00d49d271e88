// out = activation(gate) * up.
//
// A CTA computes kThreads vectors of one row; the rows' CTAs lie along x, which may be long.
//
// Bound: bytes, 3 * size elements a row: 256 rows of 14336 bfloat16 are 22 MB, 5.5 us at 4 TB/s.
// Small batches: the launch.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements of a thread: 16 bytes of them, or 1 if rows are not aligned

#include "base/dependent_launch.cuh"
#include "runner/ops/gate_mul_kernel.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename T, Activation kActivation, int kVector>
__global__ void GateMulKernel(GateMulParams params) {
  LetNextKernelIn();
  AwaitKernelBefore();
  const int64_t row = blockIdx.x;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (first >= params.size) return;
  const T* gate =
      static_cast<const T*>(params.gate_up) + row * params.gate_up_stride;  // [2 * size]
  T* out = static_cast<T*>(params.out) + row * params.out_stride;           // [size]

  const Vector<T, kVector> g = LoadVector<T, kVector>(gate + first);
  const Vector<T, kVector> u = LoadVector<T, kVector>(gate + params.size + first);
  Vector<T, kVector> result;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float activated = RoundTo<T>(Activate<kActivation>(ToFloat(g.value[j])));
    result.value[j] = FromFloat<T>(activated * ToFloat(u.value[j]));
  }
  StoreVector(out + first, result);
}

template <typename T, Activation kActivation, int kVector>
cudaError_t Launch(const GateMulParams& params, cudaStream_t stream) {
  const int num_vectors = params.size / kVector;
  const dim3 grid(params.num_rows, (num_vectors + kThreads - 1) / kThreads);
  return LaunchDependent(GateMulKernel<T, kActivation, kVector>, grid, kThreads, 0, stream, params);
}

template <typename T, Activation kActivation>
cudaError_t LaunchForAlignment(const GateMulParams& params, cudaStream_t stream) {
  // A size of whole vectors keeps `up`, which begins after it, aligned too.
  const bool aligned = params.size % kFullVector<T> == 0 &&
                       IsAlignedForVectors<T>(params.gate_up, params.gate_up_stride) &&
                       IsAlignedForVectors<T>(params.out, params.out_stride);
  return aligned ? Launch<T, kActivation, kFullVector<T>>(params, stream)
                 : Launch<T, kActivation, 1>(params, stream);
}

}  // namespace

cudaError_t LaunchGateMul(const GateMulParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0 || params.size <= 0) return cudaSuccess;
  return VisitDeviceType(params.dtype, [&](auto zero) {
    using T = decltype(zero);
    switch (params.activation) {
      case Activation::kSilu:
        return LaunchForAlignment<T, Activation::kSilu>(params, stream);
      case Activation::kGeluTanh:
        return LaunchForAlignment<T, Activation::kGeluTanh>(params, stream);
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace reprise
