// Merges partial attention results with one warp per (token, head). The lanes first divide the
// parts, to compute the weights, and then the dims, to compute the sums. Each lane moves four dims
// at a time if alignment allows.
//
// Bound: memory. The out and lse of each part are read at most once, and out is written once: 4
// parts of 256 tokens with 32 heads of 128 dims in float32 are 17 MB.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr float kNoKeys = -INFINITY;

__device__ float Load(const float* at) { return *at; }
__device__ float Load(const __half* at) { return __half2float(*at); }
__device__ float Load(const __nv_bfloat16* at) { return __bfloat162float(*at); }
__device__ void Store(float* at, float value) { *at = value; }
__device__ void Store(__half* at, float value) { *at = __float2half_rn(value); }
__device__ void Store(__nv_bfloat16* at, float value) { *at = __float2bfloat16_rn(value); }

__device__ float WarpMax(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// Contiguous elements that are moved by one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

template <typename Part, typename Out, int kWidth>
__global__ void __launch_bounds__(kThreads)
    MergeStatesKernel(const __grid_constant__ MergeStatesArgs args) {
  static_assert(kMaxMergeParts == 64, "a lane has two parts");
  const int lane = threadIdx.x % 32;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(args.num_tokens) * args.num_heads) return;
  const int64_t token = unit / args.num_heads;
  const int head = static_cast<int>(unit % args.num_heads);

  const auto lse_of = [&](int part) {
    return part < args.num_parts ? PartLse(args, part, token, head) : kNoKeys;
  };
  const float lse_low = lse_of(lane);
  const float lse_high = lse_of(lane + 32);
  float largest = WarpMax(fmaxf(lse_low, lse_high));
  const bool has_keys = largest != kNoKeys;
  if (has_keys && args.sinks) largest = fmaxf(largest, args.sinks[head]);
  float weight_low = has_keys ? expf(lse_low - largest) : 0.0f;
  float weight_high = has_keys ? expf(lse_high - largest) : 0.0f;
  float total = WarpSum(weight_low + weight_high);
  if (has_keys && args.sinks) total += expf(args.sinks[head] - largest);
  if (has_keys) {
    weight_low /= total;
    weight_high /= total;
  }

  const int64_t from = args.part.Offset(token, head);
  Out* out = static_cast<Out*>(args.out.data) + args.out.Offset(token, head);
  for (int base = 0; base < args.head_dim; base += 32 * kWidth) {
    const int dim = base + lane * kWidth;
    float sum[kWidth] = {};
    for (int part = 0; part < args.num_parts; ++part) {
      const float weight = __shfl_sync(~0u, part < 32 ? weight_low : weight_high, part % 32);
      if (weight == 0.0f || dim >= args.head_dim) continue;  // its out may be NaN
      const auto values = *reinterpret_cast<const Vector<Part, kWidth>*>(
          static_cast<const Part*>(args.part_out[part]) + from + dim);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += weight * Load(&values.at[i]);
    }
    if (dim >= args.head_dim) continue;
    Vector<Out, kWidth> values;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) Store(&values.at[i], sum[i]);
    *reinterpret_cast<Vector<Out, kWidth>*>(out + dim) = values;
  }
  if (lane == 0 && args.lse.data) {
    args.lse.data[args.lse.Offset(token, head)] = has_keys ? largest + logf(total) : kNoKeys;
  }
}

constexpr int kWide = 4;

// Whether all rows of the parts and of out are aligned for vectors of kWide elements.
bool IsWide(const MergeStatesArgs& args) {
  const auto is_aligned = [](const void* data, DType dtype) {
    return reinterpret_cast<uintptr_t>(data) % (kWide * SizeOf(dtype)) == 0;
  };
  for (int64_t count : {static_cast<int64_t>(args.head_dim), args.part.token_stride,
                        args.part.head_stride, args.out.token_stride, args.out.head_stride}) {
    if (count % kWide != 0) return false;
  }
  for (int part = 0; part < args.num_parts; ++part) {
    if (!is_aligned(args.part_out[part], args.part.dtype)) return false;
  }
  return is_aligned(args.out.data, args.out.dtype);
}

template <typename Part, typename Out>
void LaunchInto(const MergeStatesArgs& args, cudaStream_t stream) {
  const int64_t units = static_cast<int64_t>(args.num_tokens) * args.num_heads;
  const auto ctas = static_cast<unsigned>((units + kWarps - 1) / kWarps);
  if (IsWide(args)) {
    MergeStatesKernel<Part, Out, kWide><<<ctas, kThreads, 0, stream>>>(args);
  } else {
    MergeStatesKernel<Part, Out, 1><<<ctas, kThreads, 0, stream>>>(args);
  }
}

template <typename Part>
void LaunchFrom(const MergeStatesArgs& args, cudaStream_t stream) {
  if (args.out.dtype == DType::kFloat32) {
    LaunchInto<Part, float>(args, stream);
  } else if (args.out.dtype == DType::kFloat16) {
    LaunchInto<Part, __half>(args, stream);
  } else {
    LaunchInto<Part, __nv_bfloat16>(args, stream);
  }
}

__global__ void __launch_bounds__(kThreads)
    ConvertLseKernel(const __grid_constant__ ConvertLseArgs args, const float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(args.num_tokens) * args.num_heads) return;
  ConvertLseAt(args, factor, i / args.num_heads, i % args.num_heads);
}

}  // namespace

absl::Status LaunchMergeStates(const MergeStatesArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckMergeStates(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.part.dtype == DType::kFloat32) {
    LaunchFrom<float>(args, stream);
  } else if (args.part.dtype == DType::kFloat16) {
    LaunchFrom<__half>(args, stream);
  } else {
    LaunchFrom<__nv_bfloat16>(args, stream);
  }
  return CudaStatus(cudaGetLastError(), "LaunchMergeStates");
}

absl::Status LaunchConvertLse(const ConvertLseArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckConvertLse(args));
  const int64_t count = static_cast<int64_t>(args.num_tokens) * args.num_heads;
  if (count == 0) return absl::OkStatus();
  const auto ctas = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  ConvertLseKernel<<<ctas, kThreads, 0, stream>>>(args, LogFactor(args));
  return CudaStatus(cudaGetLastError(), "LaunchConvertLse");
}

}  // namespace reprise
