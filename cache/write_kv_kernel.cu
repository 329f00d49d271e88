// Copies new keys and values to their slots in the cache, converting on the way.
//
// Bound: memory. Each token moves num_kv_heads * (head_dim_qk + head_dim_v) elements in and out
// once; 8192 tokens of 8 x 128 bf16 are 67 MB. A few tokens are bound by latency: the launch, a
// load, a store.
//
// A thread moves one access: 16 bytes of cache where strides and addresses allow, so that a warp
// writes whole sectors, else one element. It loads its source and its slot together, for a source
// does not depend on its slot: a token without one is loaded in vain rather than waited for. More
// accesses a thread gain nothing on an H200, and cost where they take registers: what counts is
// that all threads of an SM are there, and that CTAs go through memory in order.
//
// Grid: x over groups of tokens, y = 0 for K, 1 for V (if there is one), z over the accesses of a
// token, where they are more than a CTA has threads. Layouts whose tokens are the innermost
// dimension have a kernel of their own (cache/write_kv_columns_kernel.h).

#include <algorithm>
#include <cstdint>

#include "base/dependent_launch.cuh"
#include "base/divisor.h"
#include "cache/kv_elements.cuh"
#include "cache/slot_place.cuh"
#include "cache/write_kv_columns_kernel.h"
#include "cache/write_kv_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

// As many as an SM holds threads for; conversion to fp8 takes more registers.
template <typename Dst>
constexpr int kMinCtasPerSm = sizeof(Dst) == 1 ? 5 : 8;

// K or V. Strides in elements.
struct Side {
  KvSource source;
  KvView view;
  Scale scale;
  int elements_per_access = 1;  // kAccessBytes of the cache, or 1
  int tokens_per_cta = 1;
  int accesses_per_cta = 0;    // of a token
  int accesses_per_token = 0;  // by all CTAs along z
  Divisor per_cta;             // accesses_per_cta
  Divisor per_head;            // accesses of a head
  Divisor dim_chunk;
};

struct KernelParams {
  Side sides[2];
  const int64_t* slot_mapping;  // [num_tokens]
  int64_t num_tokens;
  SlotPlaces places;
};

// One access of N elements a thread.
template <typename Src, typename Dst, int N>
__device__ void WriteAccess(const KernelParams& params, const Side& side) {
  const auto token_in_cta = static_cast<int>(side.per_cta.Divide(threadIdx.x));
  const int64_t token = int64_t{blockIdx.x} * side.tokens_per_cta + token_in_cta;
  const int access = static_cast<int>(threadIdx.x) - token_in_cta * side.accesses_per_cta +
                     static_cast<int>(blockIdx.z) * side.accesses_per_cta;
  const auto head = static_cast<int>(side.per_head.Divide(access));
  const int dim = (access - head * static_cast<int>(side.per_head.value())) * N;
  const Src* const from = static_cast<const Src*>(side.source.data) +
                          token * side.source.token_stride + head * side.source.head_stride +
                          dim * side.source.dim_stride;
  const auto chunk = static_cast<int>(side.dim_chunk.Divide(dim));
  Dst* const to = static_cast<Dst*>(side.view.data) + head * side.view.head_stride +
                  chunk * side.view.dim_chunk_stride + (dim - chunk * side.view.dim_chunk);

  AwaitKernelBefore();
  if (token_in_cta >= side.tokens_per_cta || access >= side.accesses_per_token ||
      token >= params.num_tokens) {
    return;
  }
  const int64_t slot = params.slot_mapping[token];
  const auto loaded = *reinterpret_cast<const Elements<Src, N>*>(from);
  const float scale = ScaleOfHead(side.scale, head);
  const SlotPlace place = params.places.Find(slot);
  if (!place.is_there) return;
  *reinterpret_cast<Elements<Dst, N>*>(to + place.Offset(side.view)) = Convert<Dst>(loaded, scale);
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads, kMinCtasPerSm<Dst>)
    WriteKvKernel(const __grid_constant__ KernelParams params) {
  LetNextKernelIn();
  const Side& side = params.sides[blockIdx.y];
  if (side.elements_per_access == 1) {
    WriteAccess<Src, Dst, 1>(params, side);
  } else {
    WriteAccess<Src, Dst, kAccessBytes / sizeof(Dst)>(params, side);
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
  const int n = kAccessBytes / SizeOf(kv.dtype);
  const int load_bytes = std::min(n * SizeOf(params.source_dtype), kAccessBytes);
  const int load_unit = load_bytes / SizeOf(params.source_dtype);
  const bool is_loadable = reinterpret_cast<uintptr_t>(source.data) % load_bytes == 0 &&
                           source.dim_stride == 1 &&
                           KeepsAligned(source.token_stride, params.num_tokens, load_unit) &&
                           KeepsAligned(source.head_stride, kv.num_kv_heads, load_unit);
  const bool is_storable =
      reinterpret_cast<uintptr_t>(view.data) % kAccessBytes == 0 && head_dim % n == 0 &&
      KeepsAligned(view.block_stride, kv.num_blocks, n) &&
      KeepsAligned(view.token_stride, kv.block_size, n) &&
      KeepsAligned(view.head_stride, kv.num_kv_heads, n) &&
      (view.dim_chunk >= head_dim || (view.dim_chunk % n == 0 && view.dim_chunk_stride % n == 0));
  return is_loadable && is_storable ? n : 1;
}

Side MakeSide(const WriteKvParams& params, const KvSource& source, const KvView& view,
              const Scale& scale, int head_dim) {
  const int n = ElementsPerAccess(params, source, view, head_dim);
  const int per_head = head_dim / n;
  const int per_token = params.kv.num_kv_heads * per_head;
  const int per_cta = std::min(per_token, kThreads);
  return {.source = source,
          .view = view,
          .scale = scale,
          .elements_per_access = n,
          .tokens_per_cta = kThreads / per_cta,
          .accesses_per_cta = per_cta,
          .accesses_per_token = per_token,
          .per_cta = Divisor(per_cta),
          .per_head = Divisor(per_head),
          .dim_chunk = Divisor(view.dim_chunk)};
}

template <typename Src, typename Dst>
cudaError_t Launch(const KernelParams& params, dim3 grid, cudaStream_t stream) {
  return LaunchDependent(WriteKvKernel<Src, Dst>, grid, kThreads, 0, stream, params);
}

// Every conversion there is.
struct Instantiation {
  DType source;
  DType cache;
  cudaError_t (*launch)(const KernelParams&, dim3 grid, cudaStream_t);
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
  if (CanWriteKvColumns(params)) return LaunchWriteKvColumns(params, stream);
  const KvLayer& kv = params.kv;
  const KernelParams kernel_params = {
      .sides = {MakeSide(params, params.k, kv.k, kv.k_scale, kv.head_dim_qk),
                MakeSide(params, params.v, kv.v, kv.v_scale, kv.head_dim_v)},
      .slot_mapping = params.slot_mapping,
      .num_tokens = params.num_tokens,
      .places = SlotPlaces(kv)};

  int64_t groups = 0, parts = 0;
  for (int i = 0; i < params.num_sides; ++i) {
    const Side& side = kernel_params.sides[i];
    groups = std::max(groups, (params.num_tokens + side.tokens_per_cta - 1) / side.tokens_per_cta);
    parts = std::max<int64_t>(
        parts, (side.accesses_per_token + side.accesses_per_cta - 1) / side.accesses_per_cta);
  }
  const dim3 grid(static_cast<unsigned>(groups), params.num_sides, static_cast<unsigned>(parts));
  for (const Instantiation& candidate : kInstantiations) {
    if (candidate.source != params.source_dtype || candidate.cache != kv.dtype) continue;
    return candidate.launch(kernel_params, grid, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace reprise
