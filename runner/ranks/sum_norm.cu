// Fuses a push all-reduce (distributed/push_all_reduce.h) with a residual add and an RMS norm
// (runner/ops/norms/norm.cu).
//
// One CTA per row normalises the row. It uses the threads of RmsNormKernel in the same order, so
// the result is bitwise identical to the two separate kernels. Up to kMaxPushers more CTAs per row
// push this rank's summands to the other ranks, because one SM sends only a few bytes per cycle. If
// there are too few SMs for one pusher per row, the row's CTA pushes first. While the lines of the
// other ranks are in flight, the CTA loads the residual and the weight.
//
// CTAs wait for lines that CTAs of other ranks push, so all CTAs of a grid must be resident at
// once: the grid has at most one CTA per SM.
//
// Bound: latency. For one row of 4096 bfloat16: the launch, mostly hidden, one transfer over the
// link, a poll, a reduction in the CTA, and a store. The kernel replaces one that ends by storing
// the sum and one that begins by loading it.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/distributed/push_lines.cuh"
#include "reprise/runner/ops/norms/norm_rows.cuh"
#include "reprise/runner/ranks/sum_norm_args.h"

namespace reprise {
namespace {

// Maximum number of CTAs that push one row. More CTAs do not push faster.
constexpr int kMaxPushers = 8;

constexpr int kLines = 16 / kPushDataBytes;  // lines per vector

template <typename T>
constexpr PushType kPushTypeOf = sizeof(T) == sizeof(float) ? PushType::kFloat32
                                                            : PushType::kBFloat16;

// Returns vector `i` of the row whose first line is `first_line`: x summed over ranks, plus the
// residual. Stores the result to `residual`.
template <typename T, int kVector>
__device__ Vector<T, kVector> LoadSummed(const PushAllReduce& sum, int64_t first_line, const T* x,
                                         T* residual, int i) {
  Vector<T, kVector> v = LoadVector<T, kVector>(x + i * kVector);
  const Vector<T, kVector> r = LoadVector<T, kVector>(residual + i * kVector);
  PushLine lines[kLines];
  std::memcpy(lines, &v, sizeof(v));
  sum.Replace<kPushTypeOf<T>>(first_line + int64_t{i} * kLines, lines);
  std::memcpy(&v, lines, sizeof(v));
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    v.value[j] = FromFloat<T>(ToFloat(r.value[j]) + ToFloat(v.value[j]));
  }
  StoreVector(residual + i * kVector, v);
  return v;
}

// Grid: rows x (1 + number of pushers per row).
template <typename T, bool kOnePlus>
__global__ void __launch_bounds__(kMaxNormThreads, 1)
    PushedRmsNormKernel(const __grid_constant__ SumNormArgs args) {
  constexpr int kVector = kFullVector<T>;
  __shared__ float sums[kMaxNormWarps];
  TriggerDependents();
  const NormArgs& norm = args.norm;
  const int64_t row = blockIdx.x;
  const bool normalises = blockIdx.y == 0;
  const T* x = static_cast<const T*>(norm.x) + row * norm.x_stride;  // [size]
  T* residual = static_cast<T*>(norm.residual) + row * norm.residual_stride;
  const T* weight = static_cast<const T*>(norm.weight);
  T* out = static_cast<T*>(norm.out) + row * norm.out_stride;
  const int num_vectors = norm.size / kVector;
  const int first = threadIdx.x;
  const bool has_first = first < num_vectors;
  if (normalises && has_first) PrefetchToL2(weight + first * kVector);

  GridDependencySync();
  const PushAllReduce sum(args.sum);
  const int num_lines = num_vectors * kLines;
  const int64_t first_line = row * num_lines;
  const int num_pushers = gridDim.y - 1;
  if (num_pushers == 0) {
    for (int i = threadIdx.x; i < num_lines; i += blockDim.x) sum.Push(first_line + i);
  } else if (!normalises) {
    // Each pusher sends a contiguous range of lines, rounded up to whole warps.
    const int run = ((num_lines + num_pushers - 1) / num_pushers + 31) / 32 * 32;
    const int begin = (static_cast<int>(blockIdx.y) - 1) * run;
    const int end = min(begin + run, num_lines);
    for (int i = begin + threadIdx.x; i < end; i += blockDim.x) sum.Push(first_line + i);
  }
  if (normalises) {
    Vector<T, kVector> kept = {}, kept_weight = {};
    float squares = 0;
    if (has_first) {
      kept_weight = LoadVector<T, kVector>(weight + first * kVector);
      kept = LoadSummed<T, kVector>(sum, first_line, x, residual, first);
      squares = SumOfSquares(kept);
    }
    for (int i = first + blockDim.x; i < num_vectors; i += blockDim.x) {
      squares += SumOfSquares(LoadSummed<T, kVector>(sum, first_line, x, residual, i));
    }
    const float scale =
        1.0f / sqrtf(SumOverCta(squares, sums) / static_cast<float>(norm.size) + norm.eps);
    if (has_first) {
      StoreVector(out + first * kVector, Scaled<T, kVector, kOnePlus>(kept, kept_weight, scale));
    }
    for (int i = first + blockDim.x; i < num_vectors; i += blockDim.x) {
      StoreVector(out + i * kVector, Scaled<T, kVector, kOnePlus>(
                                         LoadVector<T, kVector>(residual + i * kVector),
                                         LoadVector<T, kVector>(weight + i * kVector), scale));
    }
  }
  // All threads of a normalising CTA have read their lines: SumOverCta() has synchronised them.
  __syncthreads();
  if (threadIdx.x == 0) sum.End(gridDim.x * gridDim.y);
}

// Returns the number of SMs of the current device, or 0 if the query fails.
int NumSms() {
  int device = 0, num_sms = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return 0;
  }
  return num_sms;
}

template <typename T>
cudaError_t Launch(const SumNormArgs& args, cudaStream_t stream) {
  const int num_rows = args.norm.num_rows;
  const int num_pushers = std::clamp((NumSms() - num_rows) / num_rows, 0, kMaxPushers);
  const dim3 grid(static_cast<unsigned>(num_rows), static_cast<unsigned>(1 + num_pushers));
  const dim3 threads(static_cast<unsigned>(NumNormThreads(args.norm.size / kFullVector<T>)));
  const auto kernel = args.norm.kind == NormKind::kRmsOnePlus ? PushedRmsNormKernel<T, true>
                                                              : PushedRmsNormKernel<T, false>;
  return LaunchDependent(kernel, grid, threads, 0, stream, args);
}

bool Overlap(const void* a, const void* b, int64_t bytes_of_a, int64_t bytes_of_b) {
  const char* const a_data = static_cast<const char*>(a);
  const char* const b_data = static_cast<const char*>(b);
  return a_data < b_data + bytes_of_b && b_data < a_data + bytes_of_a;
}

}  // namespace

bool CanSumInNorm(const NormArgs& norm) {
  if (norm.dtype != DType::kFloat32 && norm.dtype != DType::kBFloat16) return false;
  const int64_t item_bytes = norm.dtype == DType::kFloat32 ? 4 : 2;
  const bool is_aligned = norm.dtype == DType::kFloat32 ? IsAlignedForNorm<float>(norm)
                                                        : IsAlignedForNorm<__nv_bfloat16>(norm);
  const int64_t row_bytes = norm.size * item_bytes;
  return is_aligned && norm.kind != NormKind::kLayer && norm.residual != nullptr &&
         norm.num_rows > 0 && norm.num_rows <= NumSms() &&
         (norm.x_stride == norm.size || norm.num_rows == 1) &&
         !Overlap(norm.x, norm.out, norm.num_rows * row_bytes,
                  (norm.num_rows - 1) * norm.out_stride * item_bytes + row_bytes);
}

absl::Status LaunchSumNorm(const SumNormArgs& args, cudaStream_t stream) {
  const cudaError_t error = args.norm.dtype == DType::kFloat32
                                ? Launch<float>(args, stream)
                                : Launch<__nv_bfloat16>(args, stream);
  return CudaStatus(error, "SumAddRmsNorm");
}

}  // namespace reprise
