// Copies new keys and values to their cache slots, with conversion.
//
// Bound: memory bandwidth. Each token reads and writes num_kv_heads * (head_dim_qk + head_dim_v)
// elements once; for 8192 tokens of 8 x 128 bf16, 67 MB in total. For a few tokens, latency bound:
// the launch, a load, a store.
//
// A thread moves one access: 16 bytes of cache if strides and addresses allow it, so that a warp
// writes whole sectors, and one element otherwise. It loads its source and its slot concurrently,
// because the source does not depend on the slot. For a token without a slot the load is wasted,
// but no load waits for another. More accesses per thread gain nothing on an H200, and cost time if
// they need more registers: the kernel needs full occupancy, and CTAs that go through memory in
// order.
//
// Grid: x over groups of tokens; y = 0 for K, 1 for V (if given); z over the accesses of a token,
// if it has more accesses than a CTA has threads. Layouts whose innermost dimension is the tokens
// use a separate kernel if strides and addresses allow it (write_kv_columns.cu).

#include <algorithm>
#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_elements.cuh"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/ops/write_kv_args.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

// 8 CTAs are full occupancy. Conversion to fp8 needs more registers.
template <typename Dst>
constexpr int kMinCtasPerSm = sizeof(Dst) == 1 ? 5 : 8;

// K or V.
struct Side {
  KvSide<ConstKvTokens> kv;
  int elements_per_access = 1;
  int tokens_per_cta = 1;
  int accesses_per_cta = 0;    // accesses of one token per CTA
  int accesses_per_token = 0;  // by all CTAs along z
  Divisor per_cta;             // accesses_per_cta
  Divisor per_head;            // accesses per head
  Divisor dim_chunk;
};

struct KernelParams {
  Side sides[2];
  const int64_t* slot_mapping;  // [num_tokens]
  int64_t num_tokens;
  SlotAddresses places;
};

// Writes one access of N elements per thread.
template <typename Src, typename Dst, int N>
__device__ void WriteAccess(const KernelParams& params, const Side& side) {
  const auto token_in_cta = static_cast<int>(side.per_cta.Divide(threadIdx.x));
  const int64_t token = int64_t{blockIdx.x} * side.tokens_per_cta + token_in_cta;
  const int access = static_cast<int>(threadIdx.x) - token_in_cta * side.accesses_per_cta +
                     static_cast<int>(blockIdx.z) * side.accesses_per_cta;
  const auto head = static_cast<int>(side.per_head.Divide(access));
  const int dim = (access - head * static_cast<int>(side.per_head.value())) * N;
  const ConstKvTokens& source = side.kv.tokens;
  const KvView& view = side.kv.view;
  const Src* const from = static_cast<const Src*>(source.data) + token * source.token_stride +
                          head * source.head_stride + dim * source.dim_stride;
  const auto chunk = static_cast<int>(side.dim_chunk.Divide(dim));
  Dst* const to = static_cast<Dst*>(view.data) + head * view.head_stride +
                  chunk * view.dim_chunk_stride + (dim - chunk * view.dim_chunk);

  GridDependencySync();
  if (token_in_cta >= side.tokens_per_cta || access >= side.accesses_per_token ||
      token >= params.num_tokens) {
    return;
  }
  const int64_t slot = params.slot_mapping[token];
  const auto loaded = *reinterpret_cast<const Elements<Src, N>*>(from);
  const float scale = ScaleOfHead(side.kv.scale, head);
  const SlotAddress place = params.places.Find(slot);
  if (!place.is_there) return;
  *reinterpret_cast<Elements<Dst, N>*>(to + place.Offset(view)) = Convert<Dst>(loaded, scale);
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads, kMinCtasPerSm<Dst>)
    WriteKvKernel(const __grid_constant__ KernelParams params) {
  TriggerDependents();
  const Side& side = params.sides[blockIdx.y];
  if (side.elements_per_access == 1) {
    WriteAccess<Src, Dst, 1>(params, side);
  } else {
    WriteAccess<Src, Dst, kAccessBytes / sizeof(Dst)>(params, side);
  }
}

Side MakeSide(const WriteKvArgs& args, int index) {
  const KvSide<ConstKvTokens> side = SideOf(args, index);
  const int n = ElementsPerAccess(args.kv, side, args.dtype, args.num_tokens);
  const int per_head = side.head_dim / n;
  const int per_token = args.kv.num_kv_heads * per_head;
  const int per_cta = std::min(per_token, kThreads);
  return {.kv = side,
          .elements_per_access = n,
          .tokens_per_cta = kThreads / per_cta,
          .accesses_per_cta = per_cta,
          .accesses_per_token = per_token,
          .per_cta = Divisor(per_cta),
          .per_head = Divisor(per_head),
          .dim_chunk = Divisor(side.view.dim_chunk)};
}

template <typename Src, typename Dst>
absl::Status Launch(const KernelParams& params, dim3 grid, cudaStream_t stream) {
  return CudaStatus(
      LaunchDependent(WriteKvKernel<Src, Dst>, grid, kThreads, /*shared_bytes=*/0, stream, params),
      "KV write");
}

}  // namespace

absl::Status LaunchWriteKv(const WriteKvArgs& args, cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(CheckWriteKv(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  if (CanWriteKvColumns(args)) return LaunchWriteKvColumns(args, stream);
  const KernelParams params = {.sides = {MakeSide(args, 0), MakeSide(args, 1)},
                               .slot_mapping = args.slot_mapping,
                               .num_tokens = args.num_tokens,
                               .places = SlotAddresses(args.kv)};
  int64_t groups = 0, parts = 0;
  for (int i = 0; i < args.num_sides; ++i) {
    const Side& side = params.sides[i];
    groups = std::max(groups, (args.num_tokens + side.tokens_per_cta - 1) / side.tokens_per_cta);
    parts = std::max<int64_t>(
        parts, (side.accesses_per_token + side.accesses_per_cta - 1) / side.accesses_per_cta);
  }
  const dim3 grid(static_cast<unsigned>(groups), args.num_sides, static_cast<unsigned>(parts));
  if (IsFp8(args.dtype)) {  // fp8 is copied as bytes, so either fp8 type serves
    using Byte = CudaElements::Fp8E4M3;
    return Launch<Byte, Byte>(params, grid, stream);
  }
  return WithTokenType<CudaElements>(args.dtype, [&]<typename Src>(Src) {
    return WithCacheType<CudaElements>(
        args.kv.dtype, [&]<typename Dst>(Dst) { return Launch<Src, Dst>(params, grid, stream); });
  });
}

}  // namespace reprise
