// out[p] = x[p / pairs_per_row] weight[chosen[p]]^T + bias[chosen[p]], computed in float32.
//
// A CTA computes kOutputsPerCta outputs of one expert; experts are on the grid's y. It reads
// `chosen` in chunks of kThreads, lists the pairs of its expert in ascending order, and multiplies
// up to kRows of them together, so that up to kRows rows share one read of a weight. A CTA whose
// expert was not chosen ends after the scan. A warp computes kOutputs outputs of the rows: lanes
// read consecutive elements, and shuffles add the partial sums. The order of the additions of an
// output does not depend on the rest of the batch.
//
// Bound: bytes of the weights of chosen experts, each read at least once per kRows rows. One token
// of Qwen3-30B-A3B (8 of 128 experts, 2048 -> 2 x 768, bfloat16) reads 50 MB in this GEMM, 13 us at
// 4 TB/s. With many rows per expert, float32 arithmetic is the bound: use ApplyAll() instead.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements per load: a vector of 16 bytes, or 1 element if rows are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/runner/ops/expert_linear_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarpSize = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kOutputs = 4;  // per warp and pass
constexpr int kOutputsPerCta = kWarps * kOutputs;
constexpr int kRows = 8;

// Writes the pairs of [begin, begin + kThreads) that chose `expert` to `pairs` in ascending order
// and returns their number. REQUIRES: called by all threads. `pairs` may be read afterwards.
__device__ int ListPairs(const ExpertLinearArgs& args, int begin, int expert, int* pairs,
                         int* warp_counts) {
  const int pair = begin + static_cast<int>(threadIdx.x);
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const bool is_hit = pair < args.num_pairs && args.chosen[pair] == expert;
  const unsigned hits = __ballot_sync(0xffffffffu, is_hit);
  if (lane == 0) warp_counts[warp] = __popc(hits);
  __syncthreads();
  int first = 0;
  int total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) first += warp_counts[i];
    total += warp_counts[i];
  }
  if (is_hit) pairs[first + __popc(hits & ((1u << lane) - 1))] = pair;
  __syncthreads();
  return total;
}

// Multiplies `num_rows` rows by the weights of the outputs [output, output + num_outputs) of the
// expert. One warp.
template <typename T, int kVector>
__device__ void MultiplyRows(const ExpertLinearArgs& args, int expert, int output, int num_outputs,
                             const int* pairs, int num_rows) {
  const int lane = threadIdx.x % kWarpSize;
  const T* weights[kOutputs];
  const T* rows[kRows];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t row =
        static_cast<int64_t>(expert) * args.out_features + output + min(o, num_outputs - 1);
    weights[o] = static_cast<const T*>(args.weight) + row * args.in_features;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = pairs[min(r, num_rows - 1)] / args.pairs_per_row;
    rows[r] = static_cast<const T*>(args.x) + row * args.x_stride;
  }

  float sums[kRows][kOutputs] = {};
  for (int i = lane * kVector; i < args.in_features; i += kWarpSize * kVector) {
    Vector<T, kVector> w[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) w[o] = LoadVector<T, kVector>(weights[o] + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= num_rows) break;
      const Vector<T, kVector> x = LoadVector<T, kVector>(rows[r] + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float value = ToFloat(x.value[j]);
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) sums[r][o] += value * ToFloat(w[o].value[j]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= num_rows) break;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
        sums[r][o] += __shfl_xor_sync(0xffffffffu, sums[r][o], offset);
      }
    }
    if (lane != 0) continue;
    T* const out = static_cast<T*>(args.out) + pairs[r] * args.out_stride + output;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (o >= num_outputs) break;
      float sum = sums[r][o];
      if (args.bias != nullptr) {
        sum += ToFloat(static_cast<const T*>(
            args.bias)[static_cast<int64_t>(expert) * args.out_features + output + o]);
      }
      out[o] = FromFloat<T>(sum);
    }
  }
}

// Zeroes the CTA's outputs of the pairs whose expert does not exist.
template <typename T>
__device__ void ClearUnknown(const ExpertLinearArgs& args, int first_output, int last_output) {
  for (int pair = threadIdx.x; pair < args.num_pairs; pair += kThreads) {
    if (args.chosen[pair] >= 0 && args.chosen[pair] < args.num_experts) continue;
    T* const out = static_cast<T*>(args.out) + pair * args.out_stride;
    for (int o = first_output; o < last_output; ++o) out[o] = FromFloat<T>(0.0f);
  }
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) ExpertLinearKernel(ExpertLinearArgs args) {
  __shared__ int pairs[kThreads];
  __shared__ int warp_counts[kWarps];
  const int expert = blockIdx.y;
  const int warp = threadIdx.x / kWarpSize;
  const int first_output = blockIdx.x * kOutputsPerCta;
  const int last_output = min(first_output + kOutputsPerCta, args.out_features);
  const int output = first_output + warp * kOutputs;
  const int num_outputs = min(kOutputs, last_output - output);
  if (expert == 0) ClearUnknown<T>(args, first_output, last_output);
  for (int begin = 0; begin < args.num_pairs; begin += kThreads) {
    const int num_pairs = ListPairs(args, begin, expert, pairs, warp_counts);
    if (num_outputs > 0) {
      for (int first = 0; first < num_pairs; first += kRows) {
        MultiplyRows<T, kVector>(args, expert, output, num_outputs, pairs + first,
                                 min(kRows, num_pairs - first));
      }
    }
    __syncthreads();  // before the next chunk overwrites the list
  }
}

template <typename T, int kVector>
cudaError_t Launch(const ExpertLinearArgs& args, cudaStream_t stream) {
  const dim3 grid((args.out_features + kOutputsPerCta - 1) / kOutputsPerCta, args.num_experts);
  ExpertLinearKernel<T, kVector><<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

absl::Status LaunchExpertLinear(const ExpertLinearArgs& args, cudaStream_t stream) {
  if (args.num_pairs <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = IsAlignedForVectors<T>(args.x, args.x_stride) &&
                         IsAlignedForVectors<T>(args.weight, args.in_features) &&
                         args.in_features % kFullVector<T> == 0;
    return aligned ? Launch<T, kFullVector<T>>(args, stream) : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, "ExpertLinear");
}

}  // namespace reprise
