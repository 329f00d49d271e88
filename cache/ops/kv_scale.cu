// Reduces new keys or values to one scale per head, or to a single scale.
//
// Bound: memory bandwidth. Runs only when scales are requested, not in each step. Each CTA reads
// some tokens of one head. Each of its warps divides the largest magnitude by the range, and raises
// the scale with an atomic maximum. Positive floats have the order of their bits, and division
// preserves order, so the result does not depend on the order of the warps. A kernel before it sets
// the scales to 0, and a kernel after it replaces remaining zeros by 1.

#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/to_float.cuh"
#include "reprise/cache/ops/kv_elements.cuh"
#include "reprise/cache/ops/kv_scale_args.h"
#include "reprise/cache/ops/kv_tokens.h"

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
    MaxMagnitudeKernel(const __grid_constant__ KvScaleArgs args) {
  const int head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokensPerCta;
  float most = 0.0f;
  for (int i = threadIdx.x; i < kTokensPerCta * args.head_dim; i += kThreads) {
    const int64_t token = first + i / args.head_dim;
    if (token >= args.num_tokens || args.slot_mapping[token] < 0) continue;
    const ConstKvTokens& values = args.values;
    const float magnitude = fabsf(ToFloat(
        static_cast<const T*>(values.data)[token * values.token_stride + head * values.head_stride +
                                           i % args.head_dim * values.dim_stride]));
    if (isfinite(magnitude)) most = fmaxf(most, magnitude);
  }
  for (int lane = 16; lane > 0; lane /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lane));
  }
  if (threadIdx.x % 32 == 0 && most > 0.0f) {
    float* const scale = args.scales + (args.num_scales == 1 ? 0 : head);
    atomicMax(reinterpret_cast<unsigned*>(scale), __float_as_uint(__fdiv_rn(most, args.range)));
  }
}

template <typename T>
absl::Status RaiseScales(const KvScaleArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.num_tokens + kTokensPerCta - 1) / kTokensPerCta),
                  args.num_kv_heads);
  MaxMagnitudeKernel<T><<<grid, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "computing KV scales");
}

}  // namespace

absl::Status LaunchKvScale(const KvScaleArgs& args, cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(CheckKvScale(args));
  SetScalesKernel<<<1, kThreads, 0, stream>>>(args.scales, args.num_scales);
  if (args.num_tokens > 0 && args.num_kv_heads > 0) {
    REPRISE_RETURN_IF_ERROR(WithTokenType<CudaElements>(
        args.dtype, [&]<typename T>(T) { return RaiseScales<T>(args, stream); }));
  }
  FinishScalesKernel<<<1, kThreads, 0, stream>>>(args.scales, args.num_scales);
  return CudaStatus(cudaGetLastError(), "computing KV scales");
}

}  // namespace reprise
