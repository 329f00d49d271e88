// Root-mean-square norm of the heads of q and k, in place.
//
// One warp per head: pass 1 sums squares; pass 2 reads the head again from L1, scales it and writes
// it. Each lane writes the elements that it read. The heads of a token, q's first, are distributed
// over the warps of the CTAs along y.
//
// Bound: bytes. Qwen3-8B (32 q heads, 8 kv heads, 128 dims, bfloat16) moves 20 KB per token: 256
// tokens are 5 MB, 1.3 us at 4 TB/s. Small batches cost the launch and one chain of load,
// reduction, load, store.
//
//   T         float, __half, __nv_bfloat16
//   kVector   elements per load: a vector of 16 bytes, or 1 element if heads are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/runner/ops/head_norm_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarpSize = 32;
constexpr int kWarpsPerCta = 4;

template <typename T, int kVector>
__global__ void __launch_bounds__(kWarpsPerCta* kWarpSize) HeadNormKernel(HeadNormArgs args) {
  const int64_t token = blockIdx.x;
  const int index = blockIdx.y * kWarpsPerCta + threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  if (index >= args.q.num_heads + args.k.num_heads) return;  // the whole warp
  const bool is_q = index < args.q.num_heads;
  const HeadsView& view = is_q ? args.q : args.k;
  const int head = is_q ? index : index - args.q.num_heads;
  T* x = static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
  const T* weight = static_cast<const T*>(is_q ? args.q_weight : args.k_weight);

  float sum = 0;
  for (int i = lane * kVector; i < args.head_dim; i += kWarpSize * kVector) {
    const Vector<T, kVector> v = LoadVector<T, kVector>(x + i);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float value = ToFloat(v.value[j]);
      sum += value * value;
    }
  }
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  // The division and the root are in float64, so that the scale is rounded to float32 only once.
  const float scale =
      static_cast<float>(1.0 / sqrt(static_cast<double>(sum) / args.head_dim + args.eps));

  for (int i = lane * kVector; i < args.head_dim; i += kWarpSize * kVector) {
    Vector<T, kVector> v = LoadVector<T, kVector>(x + i);
    if (weight != nullptr && args.form == NormWeight::kOnePlus) {
      const Vector<T, kVector> w = LoadVector<T, kVector>(weight + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        v.value[j] = FromFloat<T>(ToFloat(v.value[j]) * scale * (1.0f + ToFloat(w.value[j])));
      }
      StoreVector(x + i, v);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) v.value[j] = FromFloat<T>(ToFloat(v.value[j]) * scale);
    if (weight != nullptr) {
      const Vector<T, kVector> w = LoadVector<T, kVector>(weight + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        v.value[j] = FromFloat<T>(ToFloat(v.value[j]) * ToFloat(w.value[j]));
      }
    }
    StoreVector(x + i, v);
  }
}

template <typename T, int kVector>
cudaError_t Launch(const HeadNormArgs& args, cudaStream_t stream) {
  const int num_heads = args.q.num_heads + args.k.num_heads;
  const dim3 grid(args.num_tokens, (num_heads + kWarpsPerCta - 1) / kWarpsPerCta);
  HeadNormKernel<T, kVector><<<grid, kWarpsPerCta * kWarpSize, 0, stream>>>(args);
  return cudaGetLastError();
}

template <typename T>
bool IsAligned(const HeadsView& view) {
  return IsAlignedForVectors<T>(view.data, view.token_stride) &&
         view.head_stride % kFullVector<T> == 0;
}

}  // namespace

absl::Status LaunchHeadNorm(const HeadNormArgs& args, cudaStream_t stream) {
  if (args.num_tokens <= 0 || args.head_dim <= 0) return absl::OkStatus();
  if (args.q.num_heads + args.k.num_heads <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool aligned = args.head_dim % kFullVector<T> == 0 && IsAligned<T>(args.q) &&
                         IsAligned<T>(args.k) && IsAlignedForVectors<T>(args.q_weight, 0) &&
                         IsAlignedForVectors<T>(args.k_weight, 0);
    return aligned ? Launch<T, kFullVector<T>>(args, stream) : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, "NormaliseHeads");
}

}  // namespace reprise
