// Copies keys and values from their cache slots to contiguous rows, with conversion.
//
// Bound: memory bandwidth. Mirrors the write kernel (cache/ops/write_kv.cu), but the address lookup
// comes before the load. A thread moves 16 bytes of cache at a time if strides and addresses allow
// it, and single elements otherwise. A CTA has at most kThreads threads: blockDim.x along the
// elements of one token, blockDim.y tokens. Grid: x over tokens, y = 0 for K, 1 for V (if given).

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_elements.cuh"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/ops/read_kv_args.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

// A copy without conversion needs full occupancy, 8 CTAs. Conversion needs more registers.
template <typename Src, typename Dst>
constexpr int kMinCtasPerSm = std::is_same_v<Src, Dst> ? 8 : 5;

// K or V.
struct Side {
  KvSide<KvTokens> kv;
  int elements_per_access = 1;
};

struct KernelParams {
  ReadKvArgs args;
  SlotAddresses places;
  Side sides[2];
};

// Reads one side of one token, N elements per thread at a time.
template <typename Src, typename Dst, int N>
__device__ void ReadToken(const KernelParams& params, const KvSide<KvTokens>& side, int64_t token) {
  const TokenAddress found = PlaceOfToken(params.args, params.places, token);
  if (!found.is_wanted) return;
  const KvView& view = side.view;
  const Src* const stored =
      static_cast<const Src*>(view.data) + (found.place.is_there ? found.place.Offset(view) : 0);
  const int accesses_per_head = side.head_dim / N;
  const int num_accesses = params.args.kv.num_kv_heads * accesses_per_head;
  for (int i = threadIdx.x; i < num_accesses; i += blockDim.x) {
    const int head = i / accesses_per_head;
    const int dim = (i - head * accesses_per_head) * N;
    const int chunk = dim < view.dim_chunk ? 0 : dim / view.dim_chunk;
    Elements<Src, N> loaded = {};  // zero if the token has no valid address
    if (found.place.is_there) {
      loaded = *reinterpret_cast<const Elements<Src, N>*>(stored + head * view.head_stride +
                                                          chunk * view.dim_chunk_stride +
                                                          (dim - chunk * view.dim_chunk));
    }
    const float scale = ScaleOfHead(side.scale, head, found.table_row);
    Dst* const to = static_cast<Dst*>(side.tokens.data) + token * side.tokens.token_stride +
                    head * side.tokens.head_stride + dim * side.tokens.dim_stride;
    *reinterpret_cast<Elements<Dst, N>*>(to) = Dequantise<Dst>(loaded, scale);
  }
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads, kMinCtasPerSm<Src, Dst>)
    ReadKvKernel(const __grid_constant__ KernelParams params) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (token >= params.args.num_tokens) return;
  const Side& side = params.sides[blockIdx.y];
  if (side.elements_per_access == 1) {
    ReadToken<Src, Dst, 1>(params, side.kv, token);
  } else {
    ReadToken<Src, Dst, kAccessBytes / sizeof(Src)>(params, side.kv, token);
  }
}

Side MakeSide(const ReadKvArgs& args, int index) {
  const KvSide<KvTokens> side = SideOf(args, index);
  return {.kv = side,
          .elements_per_access = ElementsPerAccess(args.kv, side, args.dtype, args.num_tokens)};
}

template <typename Src, typename Dst>
absl::Status Launch(const KernelParams& params, dim3 grid, dim3 cta, cudaStream_t stream) {
  ReadKvKernel<Src, Dst><<<grid, cta, 0, stream>>>(params);
  return CudaStatus(cudaGetLastError(), "KV read");
}

}  // namespace

absl::Status LaunchReadKv(const ReadKvArgs& args, cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(CheckReadKv(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  const KernelParams params = {.args = args,
                               .places = SlotAddresses(args.kv),
                               .sides = {MakeSide(args, 0), MakeSide(args, 1)}};
  // Uses one thread per access of a token, and fills the CTA with tokens.
  int64_t most = 1;
  for (int i = 0; i < args.num_sides; ++i) {
    const Side& side = params.sides[i];
    most = std::max(most,
                    int64_t{args.kv.num_kv_heads} * (side.kv.head_dim / side.elements_per_access));
  }
  const int threads_per_token = static_cast<int>(std::min<int64_t>(most, kThreads));
  const dim3 cta(threads_per_token, kThreads / threads_per_token);
  const dim3 grid(static_cast<unsigned>((args.num_tokens + cta.y - 1) / cta.y), args.num_sides);
  return WithTokenType<CudaElements>(args.dtype, [&]<typename Dst>(Dst) {
    return WithCacheType<CudaElements>(args.kv.dtype, [&]<typename Src>(Src) {
      return Launch<Src, Dst>(params, grid, cta, stream);
    });
  });
}

}  // namespace reprise
