// Merges of partial attention results: one warp per (token, head), lanes over the parts for the
// weights, then over the dims for the sums, four at a time where alignment allows.
//
// Bound: memory. Each part's out and lse are read once, out is written once: 4 parts of 256 tokens,
// 32 heads of 128 in float32 are 17 MB.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attention/merge/merge_states_kernel.h"

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

// Contiguous elements, moved at once.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

template <typename Part, typename Out, int kWidth>
__global__ void __launch_bounds__(kThreads)
    MergeStatesKernel(const __grid_constant__ MergeStatesParams params) {
  static_assert(kMaxMergeParts == 64, "a lane has two parts");
  const int lane = threadIdx.x % 32;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(params.num_tokens) * params.num_heads) return;
  const int64_t token = unit / params.num_heads;
  const int head = static_cast<int>(unit % params.num_heads);

  const auto lse_of = [&](int part) {
    return part < params.num_parts ? PartLse(params, part, token, head) : kNoKeys;
  };
  const float lse_low = lse_of(lane);
  const float lse_high = lse_of(lane + 32);
  float largest = WarpMax(fmaxf(lse_low, lse_high));
  const bool has_keys = largest != kNoKeys;
  if (has_keys && params.sinks) largest = fmaxf(largest, params.sinks[head]);
  float weight_low = has_keys ? expf(lse_low - largest) : 0.0f;
  float weight_high = has_keys ? expf(lse_high - largest) : 0.0f;
  float total = WarpSum(weight_low + weight_high);
  if (has_keys && params.sinks) total += expf(params.sinks[head] - largest);
  if (has_keys) {
    weight_low /= total;
    weight_high /= total;
  }

  const int64_t from = params.part.Offset(token, head);
  Out* out = static_cast<Out*>(params.out.data) + params.out.Offset(token, head);
  for (int base = 0; base < params.head_dim; base += 32 * kWidth) {
    const int dim = base + lane * kWidth;
    float sum[kWidth] = {};
    for (int part = 0; part < params.num_parts; ++part) {
      const float weight = __shfl_sync(~0u, part < 32 ? weight_low : weight_high, part % 32);
      if (weight == 0.0f || dim >= params.head_dim) continue;  // its out may be NaN
      const auto values = *reinterpret_cast<const Vector<Part, kWidth>*>(
          static_cast<const Part*>(params.part_out[part]) + from + dim);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += weight * Load(&values.at[i]);
    }
    if (dim >= params.head_dim) continue;
    Vector<Out, kWidth> values;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) Store(&values.at[i], sum[i]);
    *reinterpret_cast<Vector<Out, kWidth>*>(out + dim) = values;
  }
  if (lane == 0 && params.lse.data) {
    params.lse.data[token * params.lse.token_stride + head * params.lse.head_stride] =
        has_keys ? largest + logf(total) : kNoKeys;
  }
}

constexpr int kWide = 4;

// Whether all rows of parts and out are aligned so that kWide elements can be moved at once.
bool IsWide(const MergeStatesParams& params) {
  const auto is_aligned = [](const void* data, DType dtype) {
    return reinterpret_cast<uintptr_t>(data) % (kWide * SizeOf(dtype)) == 0;
  };
  for (int64_t count : {static_cast<int64_t>(params.head_dim), params.part.token_stride,
                        params.part.head_stride, params.out.token_stride, params.out.head_stride}) {
    if (count % kWide != 0) return false;
  }
  for (int part = 0; part < params.num_parts; ++part) {
    if (!is_aligned(params.part_out[part], params.part.dtype)) return false;
  }
  return is_aligned(params.out.data, params.out.dtype);
}

template <typename Part, typename Out>
void LaunchInto(const MergeStatesParams& params, cudaStream_t stream) {
  const int64_t units = static_cast<int64_t>(params.num_tokens) * params.num_heads;
  const auto ctas = static_cast<unsigned>((units + kWarps - 1) / kWarps);
  if (IsWide(params)) {
    MergeStatesKernel<Part, Out, kWide><<<ctas, kThreads, 0, stream>>>(params);
  } else {
    MergeStatesKernel<Part, Out, 1><<<ctas, kThreads, 0, stream>>>(params);
  }
}

template <typename Part>
cudaError_t LaunchFor(const MergeStatesParams& params, cudaStream_t stream) {
  if (params.out.dtype == DType::kFloat32) {
    LaunchInto<Part, float>(params, stream);
  } else if (params.out.dtype == DType::kFloat16) {
    LaunchInto<Part, __half>(params, stream);
  } else if (params.out.dtype == DType::kBFloat16) {
    LaunchInto<Part, __nv_bfloat16>(params, stream);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

__global__ void __launch_bounds__(kThreads)
    ConvertLseKernel(const LseConversion conversion, const float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(conversion.num_tokens) * conversion.num_heads) return;
  const int64_t token = i / conversion.num_heads;
  const int64_t head = i % conversion.num_heads;
  const LseView& from = conversion.from;
  const LseView& to = conversion.to;
  to.data[token * to.token_stride + head * to.head_stride] =
      factor * from.data[token * from.token_stride + head * from.head_stride];
}

}  // namespace

cudaError_t LaunchMergeStates(const MergeStatesParams& params, cudaStream_t stream) {
  if (params.num_parts < 1 || params.num_parts > kMaxMergeParts || params.num_tokens < 0 ||
      params.num_heads < 1 || params.head_dim < 1) {
    return cudaErrorInvalidValue;
  }
  if (params.num_tokens == 0) return cudaSuccess;
  switch (params.part.dtype) {
    case DType::kFloat32:
      return LaunchFor<float>(params, stream);
    case DType::kFloat16:
      return LaunchFor<__half>(params, stream);
    case DType::kBFloat16:
      return LaunchFor<__nv_bfloat16>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t LaunchConvertLse(const LseConversion& conversion, cudaStream_t stream) {
  if (conversion.num_tokens < 0 || conversion.num_heads < 0) return cudaErrorInvalidValue;
  const int64_t count = static_cast<int64_t>(conversion.num_tokens) * conversion.num_heads;
  if (count == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  ConvertLseKernel<<<ctas, kThreads, 0, stream>>>(
      conversion, LogFactor(conversion.from_base, conversion.to_base));
  return cudaGetLastError();
}

}  // namespace reprise
