// Copies new keys and values to their slots in the cache, converting on the way.
//
// Bound: memory. Each token moves num_kv_heads * (head_dim_qk + head_dim_v) elements in and out
// once; 8192 tokens of 8 x 128 bf16 are 67 MB. A thread moves 16 bytes of cache at a time where
// strides and addresses allow, so that a warp writes whole sectors, and single elements otherwise.
// Few tokens are bound by latency: one slot load, one source load, one store.
//
// A CTA has kThreads threads: blockDim.x along the elements of one token, blockDim.y tokens. Grid:
// x over tokens, y = 0 for K, 1 for V (if there is one).

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cache/write_kv_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

// What a thread stores at once: the widest access there is.
constexpr int kStoreBytes = 16;

// K or V. Strides in elements.
struct Side {
  KvSource source;
  KvView view;
  Scale scale;
  int head_dim;
  int elements_per_access;  // kStoreBytes of the cache, or 1
};

struct KernelParams {
  Side k;
  Side v;
  const int64_t* slot_mapping;  // [num_tokens]
  int64_t num_tokens;
  int64_t num_slots;
  int block_size;
  int num_kv_heads;
};

// N elements that are loaded or stored together.
template <typename T, int N>
struct alignas(N * sizeof(T) < kStoreBytes ? N * sizeof(T) : kStoreBytes) Elements {
  T data[N];
};

__device__ float ToFloat(float x) { return x; }
__device__ float ToFloat(__half x) { return __half2float(x); }
__device__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

// Round to nearest even; the fp8 constructors saturate to the largest finite value.
template <typename T>
__device__ T FromFloat(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) return __nv_fp8_e4m3(x);
  if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) return __nv_fp8_e5m2(x);
}

template <typename Dst, typename Src, int N>
__device__ Elements<Dst, N> Convert(const Elements<Src, N>& loaded, float scale) {
  Elements<Dst, N> converted;
  if (scale != 1.0f) {  // the same for a whole head
#pragma unroll
    for (int i = 0; i < N; ++i) {
      converted.data[i] = FromFloat<Dst>(__fdiv_rn(ToFloat(loaded.data[i]), scale));
    }
  } else if constexpr (std::is_same_v<Src, Dst>) {
    converted = loaded;  // bit for bit, NaNs too
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) converted.data[i] = FromFloat<Dst>(ToFloat(loaded.data[i]));
  }
  return converted;
}

// One side of one token, N elements a thread at a time.
template <typename Src, typename Dst, int N>
__device__ void WriteToken(const KernelParams& params, const Side& side, int64_t token,
                           int64_t slot) {
  // Slots of a cache below 2^31 are divided in 32 bits, which is several times cheaper.
  int64_t block, offset;
  if (params.num_slots <= INT32_MAX) {
    block = static_cast<uint32_t>(slot) / static_cast<uint32_t>(params.block_size);
    offset = static_cast<uint32_t>(slot) - static_cast<uint32_t>(block) * params.block_size;
  } else {
    block = slot / params.block_size;
    offset = slot - block * params.block_size;
  }
  const Src* source = static_cast<const Src*>(side.source.data) + token * side.source.token_stride;
  Dst* cache = static_cast<Dst*>(side.view.data) + block * side.view.block_stride +
               offset * side.view.token_stride;

  const int accesses_per_head = side.head_dim / N;
  const int num_accesses = params.num_kv_heads * accesses_per_head;
  for (int i = threadIdx.x; i < num_accesses; i += blockDim.x) {
    const int head = i / accesses_per_head;
    const int dim = (i - head * accesses_per_head) * N;
    const int chunk = dim / side.view.dim_chunk;
    const Src* from = source + head * side.source.head_stride + dim * side.source.dim_stride;
    Dst* to = cache + head * side.view.head_stride + chunk * side.view.dim_chunk_stride +
              (dim - chunk * side.view.dim_chunk);

    const float scale = side.scale.data == nullptr ? side.scale.value
                                                   : side.scale.data[head * side.scale.head_stride];
    const auto loaded = *reinterpret_cast<const Elements<Src, N>*>(from);
    *reinterpret_cast<Elements<Dst, N>*>(to) = Convert<Dst>(loaded, scale);
  }
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads)
    WriteKvKernel(const __grid_constant__ KernelParams params) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= params.num_tokens) return;
  const int64_t slot = params.slot_mapping[token];
  if (slot < 0 || slot >= params.num_slots) return;
  const Side& side = blockIdx.y == 0 ? params.k : params.v;
  if (side.elements_per_access == 1) {
    WriteToken<Src, Dst, 1>(params, side, token, slot);
  } else {
    WriteToken<Src, Dst, kStoreBytes / sizeof(Dst)>(params, side, token, slot);
  }
}

// Whether moves over a dimension of `size` by `stride` elements keep addresses multiples of `unit`
// elements.
bool KeepsAligned(int64_t stride, int64_t size, int64_t unit) {
  return size <= 1 || stride % unit == 0;
}

int ElementsPerAccess(const WriteKvParams& params, const KvSource& source, const KvView& view,
                      int head_dim) {
  const KvLayer& kv = params.kv;
  const int n = kStoreBytes / SizeOf(kv.dtype);
  const int load_bytes = std::min(n * SizeOf(params.source_dtype), kStoreBytes);
  const int load_unit = load_bytes / SizeOf(params.source_dtype);
  const bool is_loadable = reinterpret_cast<uintptr_t>(source.data) % load_bytes == 0 &&
                           source.dim_stride == 1 &&
                           KeepsAligned(source.token_stride, params.num_tokens, load_unit) &&
                           KeepsAligned(source.head_stride, kv.num_kv_heads, load_unit);
  const bool is_storable =
      reinterpret_cast<uintptr_t>(view.data) % kStoreBytes == 0 && head_dim % n == 0 &&
      KeepsAligned(view.block_stride, kv.num_blocks, n) &&
      KeepsAligned(view.token_stride, kv.block_size, n) &&
      KeepsAligned(view.head_stride, kv.num_kv_heads, n) &&
      (view.dim_chunk >= head_dim || (view.dim_chunk % n == 0 && view.dim_chunk_stride % n == 0));
  return is_loadable && is_storable ? n : 1;
}

template <typename Src, typename Dst>
void Launch(const KernelParams& params, dim3 grid, dim3 cta, cudaStream_t stream) {
  WriteKvKernel<Src, Dst><<<grid, cta, 0, stream>>>(params);
}

// Every conversion there is.
struct Instantiation {
  DType source;
  DType cache;
  void (*launch)(const KernelParams&, dim3 grid, dim3 cta, cudaStream_t);
};
constexpr Instantiation kInstantiations[] = {
    {DType::kFloat32, DType::kFloat32, Launch<float, float>},
    {DType::kFloat32, DType::kFloat16, Launch<float, __half>},
    {DType::kFloat32, DType::kBFloat16, Launch<float, __nv_bfloat16>},
    {DType::kFloat32, DType::kFp8E4M3, Launch<float, __nv_fp8_e4m3>},
    {DType::kFloat32, DType::kFp8E5M2, Launch<float, __nv_fp8_e5m2>},
    {DType::kFloat16, DType::kFloat32, Launch<__half, float>},
    {DType::kFloat16, DType::kFloat16, Launch<__half, __half>},
    {DType::kFloat16, DType::kBFloat16, Launch<__half, __nv_bfloat16>},
    {DType::kFloat16, DType::kFp8E4M3, Launch<__half, __nv_fp8_e4m3>},
    {DType::kFloat16, DType::kFp8E5M2, Launch<__half, __nv_fp8_e5m2>},
    {DType::kBFloat16, DType::kFloat32, Launch<__nv_bfloat16, float>},
    {DType::kBFloat16, DType::kFloat16, Launch<__nv_bfloat16, __half>},
    {DType::kBFloat16, DType::kBFloat16, Launch<__nv_bfloat16, __nv_bfloat16>},
    {DType::kBFloat16, DType::kFp8E4M3, Launch<__nv_bfloat16, __nv_fp8_e4m3>},
    {DType::kBFloat16, DType::kFp8E5M2, Launch<__nv_bfloat16, __nv_fp8_e5m2>},
};

}  // namespace

cudaError_t LaunchWriteKv(const WriteKvParams& params, cudaStream_t stream) {
  if (params.num_tokens <= 0) return cudaSuccess;
  const KvLayer& kv = params.kv;
  const auto side = [&](const KvSource& source, const KvView& view, const Scale& scale,
                        int head_dim) {
    return Side{.source = source,
                .view = view,
                .scale = scale,
                .head_dim = head_dim,
                .elements_per_access = ElementsPerAccess(params, source, view, head_dim)};
  };
  const KernelParams kernel_params = {
      .k = side(params.k, kv.k, kv.k_scale, kv.head_dim_qk),
      .v = side(params.v, kv.v, kv.v_scale, kv.head_dim_v),
      .slot_mapping = params.slot_mapping,
      .num_tokens = params.num_tokens,
      .num_slots = static_cast<int64_t>(kv.num_blocks) * kv.block_size,
      .block_size = kv.block_size,
      .num_kv_heads = kv.num_kv_heads};

  // As many threads a token as it has accesses, in whole warps, and tokens to fill the CTA.
  const auto num_accesses = [&](const Side& s) {
    return static_cast<int64_t>(kv.num_kv_heads) * (s.head_dim / s.elements_per_access);
  };
  const int64_t most = std::max(num_accesses(kernel_params.k), num_accesses(kernel_params.v));
  int threads_per_token = 32;
  while (threads_per_token < kThreads && threads_per_token < most) threads_per_token *= 2;
  const dim3 cta(threads_per_token, kThreads / threads_per_token);
  const dim3 grid(static_cast<unsigned>((params.num_tokens + cta.y - 1) / cta.y), params.num_sides);

  for (const Instantiation& candidate : kInstantiations) {
    if (candidate.source != params.source_dtype || candidate.cache != kv.dtype) continue;
    candidate.launch(kernel_params, grid, cta, stream);
    return cudaGetLastError();
  }
  return cudaErrorNotSupported;
}

}  // namespace reprise
