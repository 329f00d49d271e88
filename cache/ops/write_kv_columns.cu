// Transposes tokens of one head into columns of the cache, through shared memory.
//
// A CTA processes a tile of tokens of one head of K or V. It loads their rows contiguously,
// converts them, and stores them transposed. For K (16 bytes of dims per token), adjacent threads
// store adjacent tokens. For V (one element per token), a thread stores 16 bytes of consecutive
// tokens of a dim. This requires aligned strides and addresses, and a full run: consecutive tokens
// that fill 16 bytes, have consecutive slots, and begin at an offset in the block that is a
// multiple of their number. Prompts have such runs. Other tokens (single tokens of decodes, the
// ends of prompts) are written element by element, because the adjacent elements belong to other
// tokens.
//
// Bound: memory bandwidth for prompts. For single tokens of V: the number of sectors, one per
// element.
//
// Shared memory: the tile [tokens][head_dim + 8 bytes]. The padding places adjacent runs into
// different banks.
//
// Grid: x over tiles, y over heads, z = 0 for K, 1 for V.

#include <algorithm>
#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/divisor.h"
#include "reprise/cache/ops/kv_elements.cuh"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/ops/write_kv_args.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxTileTokens = 64;  // bits of a mask; one thread per token inspects its slot
constexpr int kMinTileTokens = 16;
constexpr int kTilePadBytes = 8;
constexpr int kMaxSharedBytes = 48 << 10;
// With at least this many CTAs the GPU is fully used, and tiles may be larger.
constexpr int64_t kManyCtas = 4 * 132;

// K or V.
struct Side {
  KvSide<ConstKvTokens> kv;
  Divisor accesses;           // loads per head: head_dim / (kAccessBytes / element size)
  Divisor words;              // 4-byte words per head in the cache's type
  bool fills_pieces = false;  // kAccessBytes of tokens are aligned in the cache
};

struct KernelParams {
  Side sides[2];
  const int64_t* slot_mapping;  // [num_tokens]
  int64_t num_tokens;
  SlotAddresses places;
  int tile_shift;  // tokens per tile: 1 << tile_shift
};

// A run: tokens of a tile whose elements are contiguous in the cache.
struct Piece {
  uint8_t first;
  uint8_t count;
};

struct Tokens {
  int64_t offset[kMaxTileTokens];  // offset in the cache; -1: not written
  uint32_t starts[2];              // bit t: token t begins a run
  uint32_t ends[2];                // bit t: token t does not continue the previous run
  Piece pieces[kMaxTileTokens];
};

// Loads the tile's rows into shared memory, with conversion.
template <typename Src, typename Dst>
__device__ void LoadTile(const Side& side, int head, int64_t first_token, int num_tokens, int pitch,
                         Dst* tile) {
  constexpr int kN = kAccessBytes / sizeof(Dst);
  constexpr int kLoads = 4;  // loads in flight per thread
  const auto per_row = static_cast<int>(side.accesses.value());
  const ConstKvTokens& source = side.kv.tokens;
  const Src* const from = static_cast<const Src*>(source.data) + first_token * source.token_stride +
                          head * source.head_stride;
  const float scale = ScaleOfHead(side.kv.scale, head);
  for (int base = threadIdx.x; base < num_tokens * per_row; base += kLoads * kThreads) {
    Elements<Src, kN> loaded[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int i = base + u * kThreads;
      const auto token = static_cast<int>(side.accesses.Divide(i));
      if (token >= num_tokens) continue;
      loaded[u] = *reinterpret_cast<const Elements<Src, kN>*>(from + token * source.token_stride +
                                                              (i - token * per_row) * kN);
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int i = base + u * kThreads;
      const auto token = static_cast<int>(side.accesses.Divide(i));
      if (token >= num_tokens) continue;
      const Elements<Dst, kN> converted = Convert<Dst>(loaded[u], scale);
      const uint2* const halves = reinterpret_cast<const uint2*>(&converted);
      uint2* const to = reinterpret_cast<uint2*>(tile + token * pitch + (i - token * per_row) * kN);
      to[0] = halves[0];
      to[1] = halves[1];
    }
  }
}

// The first 64 threads look up the addresses of their tokens, and determine where runs of at most
// kN tokens begin and end.
template <int kN>
__device__ void FindPieces(const KernelParams& params, const Side& side, int64_t first_token,
                           int num_tokens, Tokens& tokens) {
  const int t = threadIdx.x;
  const bool is_token = t < num_tokens;
  const int64_t slot = is_token ? params.slot_mapping[first_token + t] : -1;
  const int64_t before = is_token && t > 0 ? params.slot_mapping[first_token + t - 1] : -1;
  const SlotAddress place = params.places.Find(slot);
  tokens.offset[t] = place.is_there ? place.Offset(side.kv.view) : -1;
  const bool follows = before >= 0 && before + 1 == slot && place.offset % kN != 0;
  const uint32_t starts = __ballot_sync(0xffffffffu, place.is_there && !follows);
  const uint32_t ends = __ballot_sync(0xffffffffu, !place.is_there || !follows);
  if (t % 32 == 0) {
    tokens.starts[t / 32] = starts;
    tokens.ends[t / 32] = ends;
  }
}

__device__ uint64_t Joined(const uint32_t (&halves)[2]) {
  return uint64_t{halves[1]} << 32 | halves[0];
}

// The thread of each token that begins a run appends the run to the list. Runs are in token order.
__device__ void ListPieces(Tokens& tokens) {
  const int t = threadIdx.x;
  const uint64_t starts = Joined(tokens.starts);
  if ((starts >> t & 1) == 0) return;
  const uint64_t later = t == 63 ? 0 : Joined(tokens.ends) >> (t + 1);
  const int count = later == 0 ? kMaxTileTokens - t : __ffsll(static_cast<long long>(later));
  const int index = __popcll(starts & ((uint64_t{1} << t) - 1));
  tokens.pieces[index] = {static_cast<uint8_t>(t), static_cast<uint8_t>(count)};
}

// Stores K, where kAccessBytes of a token are one chunk of dims.
template <typename Dst>
__device__ void StoreChunks(const Side& side, int tile_shift, int pitch, const Dst* tile,
                            const Tokens& tokens, Dst* to) {
  constexpr int kN = kAccessBytes / sizeof(Dst);
  const auto num_chunks = static_cast<int>(side.accesses.value());
  for (int i = threadIdx.x; i < num_chunks << tile_shift; i += kThreads) {
    const int chunk = i >> tile_shift, t = i - (chunk << tile_shift);
    const int64_t offset = tokens.offset[t];
    if (offset < 0) continue;
    const uint2* const halves = reinterpret_cast<const uint2*>(tile + t * pitch + chunk * kN);
    const uint2 low = halves[0], high = halves[1];
    *reinterpret_cast<uint4*>(to + offset + chunk * side.kv.view.dim_chunk_stride) = {
        low.x, low.y, high.x, high.y};
  }
}

// Stores V: a thread stores the dims of one word for one run. Two runs are often one row of a
// block. Adjacent threads store them, so that they write whole sectors together.
template <typename Dst>
__device__ void StoreDims(const Side& side, int pitch, const Dst* tile, const Tokens& tokens,
                          Dst* to) {
  constexpr int kN = kAccessBytes / sizeof(Dst);
  constexpr int kDims = 4 / sizeof(Dst);  // dims per word
  const int num_pieces = __popcll(Joined(tokens.starts));
  const auto num_words = static_cast<int>(side.words.value());
  const int64_t step = side.kv.view.dim_chunk_stride;
  for (int i = threadIdx.x; i < (num_pieces + 1) / 2 * 2 * num_words; i += kThreads) {
    const auto pair = static_cast<int>(side.words.Divide(i >> 1));
    const int word = (i >> 1) - pair * num_words, index = 2 * pair + (i & 1);
    if (index >= num_pieces) continue;
    const Piece piece = tokens.pieces[index];
    const Dst* const from = tile + piece.first * pitch + word * kDims;
    Dst* const out = to + tokens.offset[piece.first] + word * kDims * step;
    if (piece.count == kN && side.fills_pieces) {
      Elements<Dst, kDims> rows[kN];
#pragma unroll
      for (int t = 0; t < kN; ++t) {
        rows[t] = *reinterpret_cast<const Elements<Dst, kDims>*>(from + t * pitch);
      }
#pragma unroll
      for (int dim = 0; dim < kDims; ++dim) {
        Elements<Dst, kN> column;
#pragma unroll
        for (int t = 0; t < kN; ++t) column.data[t] = rows[t].data[dim];
        *reinterpret_cast<Elements<Dst, kN>*>(out + dim * step) = column;
      }
    } else {
      for (int t = 0; t < piece.count; ++t) {
        const auto row = *reinterpret_cast<const Elements<Dst, kDims>*>(from + t * pitch);
#pragma unroll
        for (int dim = 0; dim < kDims; ++dim) {
          out[dim * step + t * side.kv.view.token_stride] = row.data[dim];
        }
      }
    }
  }
}

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads)
    WriteKvColumnsKernel(const __grid_constant__ KernelParams params) {
  constexpr int kN = kAccessBytes / sizeof(Dst);
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Tokens tokens;
  TriggerDependents();
  Dst* const tile = reinterpret_cast<Dst*>(shared);
  const Side& side = params.sides[blockIdx.z];
  const int head = blockIdx.y;
  const int64_t first_token = int64_t{blockIdx.x} << params.tile_shift;
  const auto num_tokens =
      static_cast<int>(min(int64_t{1} << params.tile_shift, params.num_tokens - first_token));
  const int pitch = side.kv.head_dim + kTilePadBytes / static_cast<int>(sizeof(Dst));
  Dst* const to = static_cast<Dst*>(side.kv.view.data) + head * side.kv.view.head_stride;

  GridDependencySync();
  LoadTile<Src>(side, head, first_token, num_tokens, pitch, tile);
  if (threadIdx.x < kMaxTileTokens) {
    FindPieces<kN>(params, side, first_token, num_tokens, tokens);
  }
  __syncthreads();
  if (side.kv.view.dim_chunk != 1) {  // K
    StoreChunks(side, params.tile_shift, pitch, tile, tokens, to);
    return;
  }
  if (threadIdx.x < kMaxTileTokens) ListPieces(tokens);
  __syncthreads();
  StoreDims(side, pitch, tile, tokens, to);
}

// Whether tokens are the innermost dimension, and rows of the source can be loaded in whole
// accesses.
bool IsColumns(const WriteKvArgs& args, const KvSide<ConstKvTokens>& side) {
  const KvLayer& kv = args.kv;
  const KvView& view = side.view;
  const int n = kAccessBytes / SizeOf(kv.dtype);
  if (side.head_dim % n != 0 || side.head_dim <= view.dim_chunk ||
      !HaveWholeAccesses(kv, side.tokens, args.dtype, args.num_tokens)) {
    return false;
  }
  if (view.dim_chunk == 1) return view.token_stride == 1;
  return view.dim_chunk == n && view.token_stride == n &&
         reinterpret_cast<uintptr_t>(view.data) % kAccessBytes == 0 &&
         KeepsAligned(view.block_stride, kv.num_blocks, n) &&
         KeepsAligned(view.head_stride, kv.num_kv_heads, n) && view.dim_chunk_stride % n == 0;
}

// Whether kAccessBytes of tokens, starting at a multiple of their number, are aligned and within
// one block.
bool FillsPieces(const KvLayer& kv, const KvView& view) {
  const int n = kAccessBytes / SizeOf(kv.dtype);
  return kv.block_size % n == 0 && reinterpret_cast<uintptr_t>(view.data) % kAccessBytes == 0 &&
         KeepsAligned(view.block_stride, kv.num_blocks, n) &&
         KeepsAligned(view.head_stride, kv.num_kv_heads, n) && view.dim_chunk_stride % n == 0;
}

Side MakeSide(const WriteKvArgs& args, int index) {
  const KvSide<ConstKvTokens> side = SideOf(args, index);
  const int head_bytes = side.head_dim * SizeOf(args.kv.dtype);
  return {.kv = side,
          .accesses = Divisor(head_bytes / kAccessBytes),
          .words = Divisor(head_bytes / 4),
          .fills_pieces = FillsPieces(args.kv, side.view)};
}

int SharedBytes(const KvLayer& kv, int tile_tokens) {
  return tile_tokens * (std::max(kv.head_dim_qk, kv.head_dim_v) * SizeOf(kv.dtype) + kTilePadBytes);
}

template <typename Src, typename Dst>
absl::Status Launch(const KernelParams& params, dim3 grid, int shared_bytes, cudaStream_t stream) {
  return CudaStatus(
      LaunchDependent(WriteKvColumnsKernel<Src, Dst>, grid, kThreads, shared_bytes, stream, params),
      "KV write");
}

}  // namespace

bool CanWriteKvColumns(const WriteKvArgs& args) {
  return args.num_sides == 2 && !IsFp8(args.dtype) && IsColumns(args, SideOf(args, 0)) &&
         IsColumns(args, SideOf(args, 1)) &&
         SharedBytes(args.kv, kMinTileTokens) <= kMaxSharedBytes;
}

absl::Status LaunchWriteKvColumns(const WriteKvArgs& args, cudaStream_t stream) {
  const KvLayer& kv = args.kv;
  KernelParams params = {.sides = {MakeSide(args, 0), MakeSide(args, 1)},
                         .slot_mapping = args.slot_mapping,
                         .num_tokens = args.num_tokens,
                         .places = SlotAddresses(kv),
                         .tile_shift = 0};
  int tile_tokens = kMinTileTokens;
  while (tile_tokens < kMaxTileTokens &&
         args.num_tokens / (2 * tile_tokens) * kv.num_kv_heads * 2 >= kManyCtas &&
         SharedBytes(kv, 2 * tile_tokens) <= kMaxSharedBytes) {
    tile_tokens *= 2;
  }
  while (1 << params.tile_shift < tile_tokens) ++params.tile_shift;
  const dim3 grid(static_cast<unsigned>((args.num_tokens + tile_tokens - 1) / tile_tokens),
                  kv.num_kv_heads, 2);
  const int shared_bytes = SharedBytes(kv, tile_tokens);
  return WithTokenType<CudaElements>(args.dtype, [&]<typename Src>(Src) {
    return WithCacheType<CudaElements>(kv.dtype, [&]<typename Dst>(Dst) {
      return Launch<Src, Dst>(params, grid, shared_bytes, stream);
    });
  });
}

}  // namespace reprise
