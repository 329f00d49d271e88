// Copies new keys and values to their slots in the cache, converting on the way.
//
// Bound: memory. Each token moves num_kv_heads * (head_dim_qk + head_dim_v) elements in and out
// once; 8192 tokens of 8 x 128 bf16 are 67 MB. A thread moves 16 bytes of cache at a time where
// strides and addresses allow, so that a warp writes whole sectors, and single elements otherwise.
//
// A thread loads its sources and their slots together: a source does not depend on its slot, so a
// token without one is loaded in vain rather than waited for. Where there are enough tokens to fill
// the card, a copy works out one place of a token for two of them. More than that gains nothing on
// an H200: CTAs that go through memory in order keep its pages open. Few tokens are bound by
// latency, and have a thread each.
//
// A CTA has at most kThreads threads: blockDim.x along the elements of one token, blockDim.y
// tokens. Grid: x over tokens, y = 0 for K, 1 for V (if there is one).

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

// Tokens of a thread, at most. Conversions have long code and many registers as it is.
template <typename Src, typename Dst>
constexpr int kTokensPerThread = std::is_same_v<Src, Dst> ? 2 : 1;

// From so many threads on the card is full.
constexpr int64_t kManyThreads = 132 * 2048;

// What a thread stores at once: the widest access there is.
constexpr int kStoreBytes = 16;

// Divides by a number that is mostly a power of two.
struct Divisor {
  int value;
  int shift;  // -1: not a power of two

  __device__ int64_t Divide(int64_t n) const { return shift >= 0 ? n >> shift : n / value; }
  __device__ int Divide(int n) const { return shift >= 0 ? n >> shift : n / value; }
};

// K or V. Strides in elements.
struct Side {
  KvSource source;
  KvView view;
  Scale scale;
  int head_dim;
  int elements_per_access;  // kStoreBytes of the cache, or 1
  Divisor accesses_per_head;
};

struct KernelParams {
  Side k;
  Side v;
  const int64_t* slot_mapping;  // [num_tokens]
  int64_t num_tokens;
  int64_t num_slots;
  Divisor block_size;
  int num_kv_heads;
  int tokens_per_thread;  // 1 or kTokensPerThread
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

// Element offset of a slot in the cache.
__device__ int64_t OffsetOfSlot(const KernelParams& params, const KvView& view, int64_t slot) {
  // Slots below 2^31 are divided in 32 bits, which is several times cheaper.
  const int64_t block = slot <= INT32_MAX ? params.block_size.Divide(static_cast<int>(slot))
                                          : params.block_size.Divide(slot);
  const int64_t offset = slot - block * params.block_size.value;
  return block * view.block_stride + offset * view.token_stride;
}

// One side of a thread's tokens, N elements at a time.
template <typename Src, typename Dst, int N>
__device__ void WriteTokens(const KernelParams& params, const Side& side) {
  constexpr int kTokens = kTokensPerThread<Src, Dst>;
  const int tokens_per_thread = kTokens == 1 ? 1 : params.tokens_per_thread;
  const int64_t first_token =
      static_cast<int64_t>(blockIdx.x) * blockDim.y * tokens_per_thread + threadIdx.y;
  const int num_accesses = params.num_kv_heads * side.accesses_per_head.value;
  for (int i = threadIdx.x; i < num_accesses; i += blockDim.x) {
    const int head = side.accesses_per_head.Divide(i);
    const int dim = (i - head * side.accesses_per_head.value) * N;
    const Src* const from = static_cast<const Src*>(side.source.data) +
                            head * side.source.head_stride + dim * side.source.dim_stride;
    int64_t slots[kTokens];
    Elements<Src, N> loaded[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int64_t token = first_token + t * static_cast<int>(blockDim.y);
      slots[t] = -1;
      if (t < tokens_per_thread && token < params.num_tokens) {
        slots[t] = params.slot_mapping[token];
        loaded[t] =
            *reinterpret_cast<const Elements<Src, N>*>(from + token * side.source.token_stride);
      }
    }
    const int chunk = dim < side.view.dim_chunk ? 0 : dim / side.view.dim_chunk;
    Dst* const to = static_cast<Dst*>(side.view.data) + head * side.view.head_stride +
                    chunk * side.view.dim_chunk_stride + (dim - chunk * side.view.dim_chunk);
    const float scale = side.scale.data == nullptr ? side.scale.value
                                                   : side.scale.data[head * side.scale.head_stride];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (slots[t] < 0 || slots[t] >= params.num_slots) continue;
      *reinterpret_cast<Elements<Dst, N>*>(to + OffsetOfSlot(params, side.view, slots[t])) =
          Convert<Dst>(loaded[t], scale);
    }
  }
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads, 5)
    WriteKvKernel(const __grid_constant__ KernelParams params) {
  const Side& side = blockIdx.y == 0 ? params.k : params.v;
  if (side.elements_per_access == 1) {
    WriteTokens<Src, Dst, 1>(params, side);
  } else {
    WriteTokens<Src, Dst, kStoreBytes / sizeof(Dst)>(params, side);
  }
}

Divisor MakeDivisor(int value) {
  const bool is_power = value > 0 && (value & (value - 1)) == 0;
  int shift = 0;
  while (is_power && (1 << shift) < value) ++shift;
  return {.value = value, .shift = is_power ? shift : -1};
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
    const int n = ElementsPerAccess(params, source, view, head_dim);
    return Side{.source = source,
                .view = view,
                .scale = scale,
                .head_dim = head_dim,
                .elements_per_access = n,
                .accesses_per_head = MakeDivisor(head_dim / n)};
  };
  KernelParams kernel_params = {.k = side(params.k, kv.k, kv.k_scale, kv.head_dim_qk),
                                .v = side(params.v, kv.v, kv.v_scale, kv.head_dim_v),
                                .slot_mapping = params.slot_mapping,
                                .num_tokens = params.num_tokens,
                                .num_slots = static_cast<int64_t>(kv.num_blocks) * kv.block_size,
                                .block_size = MakeDivisor(kv.block_size),
                                .num_kv_heads = kv.num_kv_heads,
                                .tokens_per_thread = 1};

  // As many threads a token as it has accesses, and tokens to fill the CTA.
  int64_t most = int64_t{kv.num_kv_heads} * kernel_params.k.accesses_per_head.value;
  if (params.num_sides == 2) {
    most = std::max(most, int64_t{kv.num_kv_heads} * kernel_params.v.accesses_per_head.value);
  }
  const int threads_per_token = static_cast<int>(std::min<int64_t>(most, kThreads));
  const dim3 cta(threads_per_token, kThreads / threads_per_token);
  if (params.source_dtype == kv.dtype && params.num_tokens * most >= 2 * kManyThreads) {
    kernel_params.tokens_per_thread = 2;
  }
  const int64_t tokens_per_cta = static_cast<int64_t>(cta.y) * kernel_params.tokens_per_thread;
  const dim3 grid(static_cast<unsigned>((params.num_tokens + tokens_per_cta - 1) / tokens_per_cta),
                  params.num_sides);

  for (const Instantiation& candidate : kInstantiations) {
    if (candidate.source != params.source_dtype || candidate.cache != kv.dtype) continue;
    candidate.launch(kernel_params, grid, cta, stream);
    return cudaGetLastError();
  }
  return cudaErrorNotSupported;
}

}  // namespace reprise
