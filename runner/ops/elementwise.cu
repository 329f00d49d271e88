// out = f(x) for the functions of elementwise_args.h.
//
// A CTA computes kThreads vectors of one head of one row; most inputs have one head. Rows are on
// the grid's x, whose limit is large; the CTAs of a row are on y, heads on z.
//
// Bound: bytes. A gate moves 3 * size elements per row: 256 rows of 14336 bfloat16 are 22 MB, 5.5
// us at 4 TB/s. The other functions move 2 * size elements: a soft cap of 64 rows of 256,000
// float32 moves 131 MB, 33 us; the temperature of 256 tokens with 40 heads of 128 bfloat16 moves 5
// MB, 1.3 us, and reads only positions while its factor is 1. For small batches, the launch
// dominates. The gate of a layer hides its launch (base/dependent_launch.cuh).
//
//   Function  a struct of elementwise_args.h
//   T         float, __half, __nv_bfloat16
//   kVector   elements per thread: a vector of 16 bytes, or 1 element if rows are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/runner/ops/elementwise_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename Function, typename T, int kVector>
__global__ void ElementwiseKernel(ElementwiseArgs args) {
  if constexpr (Function::kIsGated) {
    TriggerDependents();
    GridDependencySync();
  }
  const int64_t row = blockIdx.x;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (first >= args.size) return;
  const Function function = Function::OfRow(args, row);
  if (function.IsIdentity()) return;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;  // [size], gated [2 * size]
  T* out = static_cast<T*>(args.out) + row * args.out_stride;        // [size]
  if constexpr (Function::kHasHeads) {
    x += blockIdx.z * args.head_stride;
    out += blockIdx.z * args.head_stride;
  }

  const Vector<T, kVector> v = LoadVector<T, kVector>(x + first);
  Vector<T, kVector> result;
  if constexpr (Function::kIsGated) {
    const Vector<T, kVector> up = LoadVector<T, kVector>(x + args.size + first);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float activated = RoundTo<T>(function(ToFloat(v.value[j])));
      result.value[j] = FromFloat<T>(activated * Function::Factor(ToFloat(up.value[j])));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      result.value[j] = FromFloat<T>(function(ToFloat(v.value[j])));
    }
  }
  StoreVector(out + first, result);
}

template <typename Function, typename T, int kVector>
cudaError_t Launch(const ElementwiseArgs& args, cudaStream_t stream) {
  const int num_vectors = args.size / kVector;
  const dim3 grid(args.num_rows, (num_vectors + kThreads - 1) / kThreads, args.num_heads);
  const auto kernel = ElementwiseKernel<Function, T, kVector>;
  if constexpr (Function::kIsGated) {
    return LaunchDependent(kernel, grid, kThreads, 0, stream, args);
  } else {
    kernel<<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  }
}

template <typename T>
bool IsAligned(const ElementwiseArgs& args) {
  // If the size is a multiple of a vector, the up half, which follows the gate half, is aligned
  // too.
  return args.size % kFullVector<T> == 0 && args.head_stride % kFullVector<T> == 0 &&
         IsAlignedForVectors<T>(args.x, args.x_stride) &&
         IsAlignedForVectors<T>(args.out, args.out_stride);
}

}  // namespace

absl::Status LaunchElementwise(const ElementwiseArgs& args, cudaStream_t stream) {
  if (args.num_rows <= 0 || args.num_heads <= 0 || args.size <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    return VisitElementwiseFunction(args.function, [&]<typename Function>() {
      return IsAligned<T>(args) ? Launch<Function, T, kFullVector<T>>(args, stream)
                                : Launch<Function, T, 1>(args, stream);
    });
  });
  return CudaStatus(error, NameOf(args.function));
}

}  // namespace reprise
