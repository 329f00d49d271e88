// Reduces new keys or values to one scale a head, or one in all.
//
// Bound: memory; it runs when scales are asked for, not in each step. Each CTA takes the magnitude
// of some tokens of one head, divides it by the range, and raises the scale by an atomic maximum:
// positive floats are ordered as their bits are, and division keeps order, so the result does not
// depend on the order of the CTAs. Before it the scales are set to 0, after it those that are still
// 0 to 1.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "base/to_float.cuh"
#include "cache/kv_scale_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensPerCta = 32;

__global__ void SetScalesKernel(float* scales, int num_scales) {
  for (int i = threadIdx.x; i < num_scales; i += blockDim.x) scales[i] = 0.0f;
}

__global__ void FinishScalesKernel(float* scales, int num_scales) {
  for (int i = threadIdx.x; i < num_scales; i += blockDim.x) {
    if (scales[i] == 0.0f) scales[i] = 1.0f;
  }
}

// Grid: x over tokens, y over heads.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxMagnitudeKernel(const __grid_constant__ KvScaleParams params) {
  const int head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokensPerCta;
  float most = 0.0f;
  for (int i = threadIdx.x; i < kTokensPerCta * params.head_dim; i += kThreads) {
    const int64_t token = first + i / params.head_dim;
    if (token >= params.num_tokens || params.slot_mapping[token] < 0) continue;
    const float magnitude = fabsf(ToFloat(static_cast<const T*>(
        params.values.data)[token * params.values.token_stride + head * params.values.head_stride +
                            i % params.head_dim * params.values.dim_stride]));
    if (isfinite(magnitude)) most = fmaxf(most, magnitude);
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
  }
  if (threadIdx.x % 32 == 0 && most > 0.0f) {
    float* const scale = params.scales + (params.num_scales == 1 ? 0 : head);
    atomicMax(reinterpret_cast<unsigned*>(scale), __float_as_uint(__fdiv_rn(most, params.range)));
  }
}

template <typename T>
void Launch(const KvScaleParams& params, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((params.num_tokens + kTokensPerCta - 1) / kTokensPerCta),
                  params.num_kv_heads);
  MaxMagnitudeKernel<T><<<grid, kThreads, 0, stream>>>(params);
}

}  // namespace

cudaError_t LaunchComputeKvScales(const KvScaleParams& params, cudaStream_t stream) {
  SetScalesKernel<<<1, kThreads, 0, stream>>>(params.scales, params.num_scales);
  if (params.num_tokens > 0) {
    switch (params.dtype) {
      case DType::kFloat32:
        Launch<float>(params, stream);
        break;
      case DType::kFloat16:
        Launch<__half>(params, stream);
        break;
      case DType::kBFloat16:
        Launch<__nv_bfloat16>(params, stream);
        break;
      default:
        return cudaErrorNotSupported;
    }
  }
  FinishScalesKernel<<<1, kThreads, 0, stream>>>(params.scales, params.num_scales);
  return cudaGetLastError();
}

}  // namespace reprise
