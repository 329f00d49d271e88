// Root-mean-square norm and layer norm of rows, with or without a residual.
//
// One CTA per row. The number of threads depends only on the number of vectors per row, so a row's
// result is bitwise independent of the batch.
//
// RmsNormKernel makes two passes. Pass 1 adds the residual (if any), stores the sum and accumulates
// squares; pass 2 scales the row and writes it. Each thread keeps its first vector of the row and
// of the weight in registers between the passes, which covers rows up to 8192 bfloat16; it reads
// further vectors again, from L1. In pass 2, a thread reads only elements that it read or wrote in
// pass 1, so `out` may be `x`.
//
// LayerNormKernel makes three passes: the sum (with a residual, the row of sums is first stored in
// `out`), the squares of the differences to the mean, and the result. In passes 2 and 3, a thread
// reads from L1 the elements that it read or wrote in pass 1, so `out` may be `x` or the residual.
//
// Bound: bytes. A row moves 2 * size elements; with a residual, an RMS norm moves 4 * size and a
// layer norm 3 * size. Weight and bias come from L2. An RMS norm of 256 rows of 4096 bfloat16 with
// a residual moves 8 MB, 2 us at 4 TB/s. Smaller batches cost the launch, most of which an RMS norm
// hides (base/dependent_launch.cuh), and one chain of load, reduction and store; a layer norm has
// two reductions.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements per load: a vector of 16 bytes, or 1 element if rows are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/runner/ops/norms/norm_args.h"
#include "reprise/runner/ops/norms/norm_rows.cuh"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

// Returns vector `i` of the row to be normalised: of x, or of the sum with the residual, which this
// function also stores in `residual`.
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

template <typename T, int kVector, bool kResidual, bool kOnePlus>
__global__ void RmsNormKernel(NormArgs args) {
  __shared__ float sums[kMaxNormWarps];
  TriggerDependents();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;  // [size]
  T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const int num_vectors = args.size / kVector;
  const int first = threadIdx.x;
  const bool has_first = first < num_vectors;
  // A prefetch does not return data, so the previous kernel may still write the weight.
  if (has_first) PrefetchToL2(weight + first * kVector);

  GridDependencySync();
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
  const float scale =
      1.0f / sqrtf(SumOverCta(sum, sums) / static_cast<float>(args.size) + args.eps);

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

template <typename T, int kVector, bool kResidual>
__global__ void LayerNormKernel(NormArgs args) {
  __shared__ float sums[kMaxNormWarps];
  __shared__ float square_sums[kMaxNormWarps];
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;  // [size]
  const T* residual = static_cast<const T*>(args.residual) + row * args.residual_stride;
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  const int num_vectors = args.size / kVector;
  const float size = static_cast<float>(args.size);

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
  const float scale = 1.0f / sqrtf(SumOverCta(squares, square_sums) / size + args.eps);

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
cudaError_t Launch(const NormArgs& args, cudaStream_t stream) {
  const int num_vectors = args.size / kVector;
  const int num_threads = NumNormThreads(num_vectors);
  const bool has_residual = args.residual != nullptr;
  if (args.kind == NormKind::kLayer) {
    const auto kernel =
        has_residual ? LayerNormKernel<T, kVector, true> : LayerNormKernel<T, kVector, false>;
    kernel<<<args.num_rows, num_threads, 0, stream>>>(args);
    return cudaGetLastError();
  }
  const auto kernel = args.kind == NormKind::kRmsOnePlus
                          ? (has_residual ? RmsNormKernel<T, kVector, true, true>
                                          : RmsNormKernel<T, kVector, false, true>)
                          : (has_residual ? RmsNormKernel<T, kVector, true, false>
                                          : RmsNormKernel<T, kVector, false, false>);
  return LaunchDependent(kernel, args.num_rows, num_threads, 0, stream, args);
}

}  // namespace

absl::Status LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  if (args.num_rows <= 0 || args.size <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    return IsAlignedForNorm<T>(args) ? Launch<T, kFullVector<T>>(args, stream)
                                     : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, args.kind == NormKind::kLayer ? "LayerNorm" : "RmsNorm");
}

}  // namespace reprise
