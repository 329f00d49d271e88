// Copies keys and values from their slots in the cache to contiguous rows, converting on the way.
//
// Bound: memory; the write's kernel (cache/write_kv_kernel.cu) with its sides exchanged, and with
// the latency of a place before that of its contents. A thread moves 16 bytes of cache at a time
// where strides and addresses allow, and single elements otherwise. A CTA has at most kThreads
// threads: blockDim.x along the elements of one token, blockDim.y tokens. Grid: x over tokens,
// y = 0 for K, 1 for V (if there is one).

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/to_float.cuh"
#include "cache/read_kv_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

// As in the write: a copy wants all threads that an SM holds.
template <typename Src, typename Dst>
constexpr int kMinCtasPerSm = std::is_same_v<Src, Dst> ? 8 : 5;

constexpr int kLoadBytes = 16;

// K or V. Strides in elements.
struct Side {
  KvView view;
  KvDestination destination;
  Scale scale;
  int head_dim;
  int elements_per_access;  // kLoadBytes of the cache, or 1
};

struct KernelParams {
  ReadKvParams read;
  Side sides[2];
};

template <typename T, int N>
struct alignas(N * sizeof(T) < kLoadBytes ? N * sizeof(T) : kLoadBytes) Elements {
  T data[N];
};

template <typename T>
__device__ T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
}

template <typename Dst, typename Src, int N>
__device__ Elements<Dst, N> Convert(const Elements<Src, N>& loaded, float scale) {
  Elements<Dst, N> converted;
  if constexpr (std::is_same_v<Src, Dst>) {
    converted = loaded;  // bit for bit, NaNs too
    if (scale == 1.0f) return converted;
  }
#pragma unroll
  for (int e = 0; e < N; ++e) converted.data[e] = FromFloat<Dst>(ToFloat(loaded.data[e]) * scale);
  return converted;
}

// One side of one token, N elements a thread at a time.
template <typename Src, typename Dst, int N>
__device__ void ReadToken(const ReadKvParams& params, const Side& side, int64_t token) {
  const TokenPlace place = PlaceOfToken(params, token);
  if (!place.is_wanted) return;
  const Src* const stored = static_cast<const Src*>(side.view.data) +
                            place.block * side.view.block_stride +
                            place.offset * side.view.token_stride;
  const int accesses_per_head = side.head_dim / N;
  const int num_accesses = params.kv.num_kv_heads * accesses_per_head;
  for (int i = threadIdx.x; i < num_accesses; i += blockDim.x) {
    const int head = i / accesses_per_head;
    const int dim = (i - head * accesses_per_head) * N;
    const int chunk = dim < side.view.dim_chunk ? 0 : dim / side.view.dim_chunk;
    Elements<Src, N> loaded = {};  // zeros where there is no place
    if (place.block >= 0) {
      loaded = *reinterpret_cast<const Elements<Src, N>*>(stored + head * side.view.head_stride +
                                                          chunk * side.view.dim_chunk_stride +
                                                          (dim - chunk * side.view.dim_chunk));
    }
    const float scale =
        side.scale.data == nullptr
            ? side.scale.value
            : side.scale
                  .data[place.table_row * side.scale.row_stride + head * side.scale.head_stride];
    Dst* const to = static_cast<Dst*>(side.destination.data) +
                    token * side.destination.token_stride + head * side.destination.head_stride +
                    dim * side.destination.dim_stride;
    *reinterpret_cast<Elements<Dst, N>*>(to) = Convert<Dst>(loaded, scale);
  }
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads, kMinCtasPerSm<Src, Dst>)
    ReadKvKernel(const __grid_constant__ KernelParams params) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= params.read.num_tokens) return;
  const Side& side = params.sides[blockIdx.y];
  if (side.elements_per_access == 1) {
    ReadToken<Src, Dst, 1>(params.read, side, token);
  } else {
    ReadToken<Src, Dst, kLoadBytes / sizeof(Src)>(params.read, side, token);
  }
}

// Whether moves over a dimension of `size` by `stride` elements keep addresses multiples of `unit`
// elements.
bool KeepsAligned(int64_t stride, int64_t size, int64_t unit) {
  return size <= 1 || stride % unit == 0;
}

int ElementsPerAccess(const ReadKvParams& params, const KvDestination& destination,
                      const KvView& view, int head_dim) {
  const KvLayer& kv = params.kv;
  const int n = kLoadBytes / SizeOf(kv.dtype);
  const int store_bytes = std::min(n * SizeOf(params.dtype), kLoadBytes);
  const int store_unit = store_bytes / SizeOf(params.dtype);
  const bool is_storable = reinterpret_cast<uintptr_t>(destination.data) % store_bytes == 0 &&
                           destination.dim_stride == 1 &&
                           KeepsAligned(destination.token_stride, params.num_tokens, store_unit) &&
                           KeepsAligned(destination.head_stride, kv.num_kv_heads, store_unit);
  const bool is_loadable =
      reinterpret_cast<uintptr_t>(view.data) % kLoadBytes == 0 && head_dim % n == 0 &&
      KeepsAligned(view.block_stride, kv.num_blocks, n) &&
      KeepsAligned(view.token_stride, kv.block_size, n) &&
      KeepsAligned(view.head_stride, kv.num_kv_heads, n) &&
      (view.dim_chunk >= head_dim || (view.dim_chunk % n == 0 && view.dim_chunk_stride % n == 0));
  return is_storable && is_loadable ? n : 1;
}

template <typename Src, typename Dst>
void Launch(const KernelParams& params, dim3 grid, dim3 cta, cudaStream_t stream) {
  ReadKvKernel<Src, Dst><<<grid, cta, 0, stream>>>(params);
}

// Every conversion there is.
struct Instantiation {
  DType cache;
  DType destination;
  void (*launch)(const KernelParams&, dim3 grid, dim3 cta, cudaStream_t);
};
constexpr Instantiation kInstantiations[] = {
    {DType::kFloat32, DType::kFloat32, Launch<float, float>},
    {DType::kFloat32, DType::kFloat16, Launch<float, __half>},
    {DType::kFloat32, DType::kBFloat16, Launch<float, __nv_bfloat16>},
    {DType::kFloat16, DType::kFloat32, Launch<__half, float>},
    {DType::kFloat16, DType::kFloat16, Launch<__half, __half>},
    {DType::kFloat16, DType::kBFloat16, Launch<__half, __nv_bfloat16>},
    {DType::kBFloat16, DType::kFloat32, Launch<__nv_bfloat16, float>},
    {DType::kBFloat16, DType::kFloat16, Launch<__nv_bfloat16, __half>},
    {DType::kBFloat16, DType::kBFloat16, Launch<__nv_bfloat16, __nv_bfloat16>},
    {DType::kFp8E4M3, DType::kFloat32, Launch<__nv_fp8_e4m3, float>},
    {DType::kFp8E4M3, DType::kFloat16, Launch<__nv_fp8_e4m3, __half>},
    {DType::kFp8E4M3, DType::kBFloat16, Launch<__nv_fp8_e4m3, __nv_bfloat16>},
    {DType::kFp8E5M2, DType::kFloat32, Launch<__nv_fp8_e5m2, float>},
    {DType::kFp8E5M2, DType::kFloat16, Launch<__nv_fp8_e5m2, __half>},
    {DType::kFp8E5M2, DType::kBFloat16, Launch<__nv_fp8_e5m2, __nv_bfloat16>},
};

}  // namespace

cudaError_t LaunchReadKv(const ReadKvParams& params, cudaStream_t stream) {
  if (params.num_tokens <= 0) return cudaSuccess;
  const KvLayer& kv = params.kv;
  const auto side = [&](const KvView& view, const KvDestination& destination, const Scale& scale,
                        int head_dim) {
    return Side{.view = view,
                .destination = destination,
                .scale = scale,
                .head_dim = head_dim,
                .elements_per_access = ElementsPerAccess(params, destination, view, head_dim)};
  };
  KernelParams kernel_params = {.read = params, .sides = {}};
  kernel_params.sides[0] = side(kv.k, params.k, kv.k_scale, kv.head_dim_qk);
  kernel_params.sides[1] = side(kv.v, params.v, kv.v_scale, kv.head_dim_v);

  // As many threads a token as it has accesses, and tokens to fill the CTA.
  int64_t most = 1;
  for (int i = 0; i < params.num_sides; ++i) {
    const Side& s = kernel_params.sides[i];
    most = std::max(most, int64_t{kv.num_kv_heads} * (s.head_dim / s.elements_per_access));
  }
  const int threads_per_token = static_cast<int>(std::min<int64_t>(most, kThreads));
  const dim3 cta(threads_per_token, kThreads / threads_per_token);
  const dim3 grid(static_cast<unsigned>((params.num_tokens + cta.y - 1) / cta.y), params.num_sides);

  for (const Instantiation& candidate : kInstantiations) {
    if (candidate.cache != kv.dtype || candidate.destination != params.dtype) continue;
    candidate.launch(kernel_params, grid, cta, stream);
    return cudaGetLastError();
  }
  return cudaErrorNotSupported;
}

}  // namespace reprise
