// Copies new keys and values to their slots in the cache, converting on the way.
//
// Bound: memory. Each token moves num_kv_heads * (head_dim_qk + head_dim_v) elements in and out
// once; 8192 tokens of 8 x 128 bf16 are 67 MB. A few tokens are bound by latency: the launch, a
// load, a store.
//
// A thread moves one access: 16 bytes of cache where strides and addresses allow, so that a warp
// writes whole sectors, else one element. It loads its source and its slot together, since a source
// does not depend on its slot: for a token without a slot the load is wasted, but nothing waits.
// More accesses a thread gain nothing on an H200, and cost time where they take registers: the
// kernel needs all threads that an SM holds, and CTAs that go through memory in order.
//
// Grid: x over groups of tokens, y = 0 for K, 1 for V (if there is one), z over the accesses of a
// token, if they are more than the threads of a CTA. Layouts whose innermost dimension is the
// tokens have a kernel of their own (write_kv_columns.cu).

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

// All threads that an SM holds; conversion to fp8 takes more registers.
template <typename Dst>
constexpr int kMinCtasPerSm = sizeof(Dst) == 1 ? 5 : 8;

// K or V.
struct Side {
  KvSide<ConstKvTokens> kv;
  int elements_per_access = 1;
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
  const ConstKvTokens& source = side.kv.tokens;
  const KvView& view = side.kv.view;
  const Src* const from = static_cast<const Src*>(source.data) + token * source.token_stride +
                          head * source.head_stride + dim * source.dim_stride;
  const auto chunk = static_cast<int>(side.dim_chunk.Divide(dim));
  Dst* const to = static_cast<Dst*>(view.data) + head * view.head_stride +
                  chunk * view.dim_chunk_stride + (dim - chunk * view.dim_chunk);

  AwaitKernelBefore();
  if (token_in_cta >= side.tokens_per_cta || access >= side.accesses_per_token ||
      token >= params.num_tokens) {
    return;
  }
  const int64_t slot = params.slot_mapping[token];
  const auto loaded = *reinterpret_cast<const Elements<Src, N>*>(from);
  const float scale = ScaleOfHead(side.kv.scale, head);
  const SlotPlace place = params.places.Find(slot);
  if (!place.is_there) return;
  *reinterpret_cast<Elements<Dst, N>*>(to + place.Offset(view)) = Convert<Dst>(loaded, scale);
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
                               .places = SlotPlaces(args.kv)};
  int64_t groups = 0, parts = 0;
  for (int i = 0; i < args.num_sides; ++i) {
    const Side& side = params.sides[i];
    groups = std::max(groups, (args.num_tokens + side.tokens_per_cta - 1) / side.tokens_per_cta);
    parts = std::max<int64_t>(
        parts, (side.accesses_per_token + side.accesses_per_cta - 1) / side.accesses_per_cta);
  }
  const dim3 grid(static_cast<unsigned>(groups), args.num_sides, static_cast<unsigned>(parts));
  if (IsFp8(args.dtype)) {  // copied, whichever of its types it is
    using Byte = CudaElements::Fp8E4M3;
    return Launch<Byte, Byte>(params, grid, stream);
  }
  return WithTokenType<CudaElements>(args.dtype, [&]<typename Src>(Src) {
    return WithCacheType<CudaElements>(
        args.kv.dtype, [&]<typename Dst>(Dst) { return Launch<Src, Dst>(params, grid, stream); });
  });
}

}  // namespace reprise
