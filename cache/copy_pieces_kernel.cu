// Copies blocks of all layers at once, piece by piece.
//
// Bound: memory, or the bus where one side is the host's: each byte is read once and written once.
// The work is num_copies * num_pieces pieces of up to 16 KB, so that one copy of a block already
// fills many CTAs; a CTA takes pieces in turn with a fixed stride. A thread has kUnroll words of 16
// bytes under way, 64 KB an SM at least, which covers the latency of device memory.
//
// Short lists of copies travel in the kernel's parameters (constant memory): no staging buffer
// whose life someone has to guard.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cache/copy_pieces_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;       // kThreads * kUnroll * 16 bytes are one piece
constexpr int kCtasPerSm = 8;    // 2,048 threads: all that an SM holds
constexpr int kFewCopies = 240;  // parameters below 2 KB are cheaper to pass

static_assert(kThreads * kUnroll * sizeof(uint4) == kPieceBytes);

struct KernelParams {
  CopyPieces src;
  CopyPieces dst;
  const BlockCopy* copies;  // [num_copies], device; null: in the kernel's parameters
  int64_t num_copies;
};

template <int kCapacity>
struct InlineCopies {
  BlockCopy copies[kCapacity];
};

template <typename Word>
__device__ void CopyPieceWords(const std::byte* from, std::byte* to, int64_t bytes) {
  const Word* const source = reinterpret_cast<const Word*>(from);
  Word* const destination = reinterpret_cast<Word*>(to);
  const int num_words = static_cast<int>(bytes / sizeof(Word));
  for (int first = threadIdx.x; first < num_words; first += kThreads * kUnroll) {
    Word words[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kThreads;
      if (i < num_words) words[u] = source[i];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * kThreads;
      if (i < num_words) destination[i] = words[u];
    }
  }
}

template <typename Word>
__device__ void CopyAll(const KernelParams& params, const BlockCopy* copies) {
  const int64_t num_items = params.num_copies * params.src.num_pieces;
  for (int64_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const int64_t copy_idx = item / params.src.num_pieces;
    const int piece_idx = static_cast<int>(item - copy_idx * params.src.num_pieces);
    const BlockCopy copy = copies[copy_idx];
    if (copy.src < 0 || copy.src >= params.src.num_blocks || copy.dst < 0 ||
        copy.dst >= params.dst.num_blocks) {
      continue;
    }
    const CopyPiece from = params.src.pieces[piece_idx];
    const CopyPiece to = params.dst.pieces[piece_idx];
    CopyPieceWords<Word>(from.data + copy.src * from.block_stride,
                         to.data + copy.dst * to.block_stride, to.bytes);
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    DeviceCopiesKernel(const __grid_constant__ KernelParams params) {
  CopyAll<Word>(params, params.copies);
}

template <typename Word, int kCapacity>
__global__ void __launch_bounds__(kThreads)
    InlineCopiesKernel(const __grid_constant__ KernelParams params,
                       const __grid_constant__ InlineCopies<kCapacity> list) {
  CopyAll<Word>(params, list.copies);
}

bool HasWork(const KernelParams& params) {
  return params.num_copies > 0 && params.src.num_pieces > 0;
}

bool HasWords(const KernelParams& params) {
  return std::min(params.src.word_bytes, params.dst.word_bytes) == sizeof(uint4);
}

int GridSize(const KernelParams& params) {
  int device = 0;
  int num_sms = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
  return static_cast<int>(
      std::min<int64_t>(params.num_copies * params.src.num_pieces, int64_t{num_sms} * kCtasPerSm));
}

template <int kCapacity>
void LaunchInline(const KernelParams& params, const BlockCopy* copies, cudaStream_t stream) {
  InlineCopies<kCapacity> list = {};
  std::memcpy(list.copies, copies, params.num_copies * sizeof(BlockCopy));
  if (HasWords(params)) {
    InlineCopiesKernel<uint4><<<GridSize(params), kThreads, 0, stream>>>(params, list);
  } else {
    InlineCopiesKernel<uint8_t><<<GridSize(params), kThreads, 0, stream>>>(params, list);
  }
}

}  // namespace

cudaError_t LaunchInlineCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int num_copies, cudaStream_t stream) {
  if (num_copies > kMaxInlineCopies) return cudaErrorInvalidValue;
  const KernelParams params = {.src = src, .dst = dst, .copies = nullptr, .num_copies = num_copies};
  if (!HasWork(params)) return cudaSuccess;
  if (num_copies <= kFewCopies) {
    LaunchInline<kFewCopies>(params, copies, stream);
  } else {
    LaunchInline<kMaxInlineCopies>(params, copies, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDeviceCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int64_t num_copies, cudaStream_t stream) {
  const KernelParams params = {.src = src, .dst = dst, .copies = copies, .num_copies = num_copies};
  if (!HasWork(params)) return cudaSuccess;
  if (HasWords(params)) {
    DeviceCopiesKernel<uint4><<<GridSize(params), kThreads, 0, stream>>>(params);
  } else {
    DeviceCopiesKernel<uint8_t><<<GridSize(params), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace reprise
