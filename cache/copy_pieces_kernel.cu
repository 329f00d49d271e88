// Copies blocks of all layers at once, piece by piece.
//
// Bound: memory, or the bus where one side is the host's: each byte is read once and written once.
// A thread copies one word of 16 bytes, a CTA 4 KB, and the CTAs go through memory in order: along
// a piece (x), then all copies of the piece (y), then the next piece (z). What that order is worth
// on an H200, 256 MB of shuffled blocks in 64 tensors: pieces before copies 140 us, several words a
// thread 134-137 us, this 130 us; a plain copy 129 us.
//
// Lists of copies travel in the kernel's parameters (constant memory), as far as they fit: no
// staging buffer whose life someone has to guard. So do the pieces beside a short list: a CTA that
// has one word a thread cannot hide the latency of looking them up (64 MB: 35.4 us against 38.4).

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache/copy_pieces_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxGridYZ = 65535;
// A list on the device is as long as it may become, mostly padding: its CTAs take copies in turn.
constexpr int kDeviceListCtas = 32;

// A short list, with which the pieces of so many layers travel: 9.6 KB of parameters.
constexpr int kFewCopies = 240;
constexpr int kFewPieces = 160;

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

struct InlinePieces {
  CopyPiece src[kFewPieces];
  CopyPiece dst[kFewPieces];
};

template <typename Word>
__device__ void CopyAll(const KernelParams& params, const BlockCopy* copies,
                        const CopyPiece* src_pieces, const CopyPiece* dst_pieces) {
  const int64_t byte = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * sizeof(Word);
  for (int piece_idx = blockIdx.z; piece_idx < params.src.num_pieces; piece_idx += gridDim.z) {
    const CopyPiece from = src_pieces[piece_idx];
    const CopyPiece to = dst_pieces[piece_idx];
    if (byte >= to.bytes) continue;
    for (int64_t copy_idx = blockIdx.y; copy_idx < params.num_copies; copy_idx += gridDim.y) {
      const BlockCopy copy = copies[copy_idx];
      if (copy.src < 0 || copy.src >= params.src.num_blocks || copy.dst < 0 ||
          copy.dst >= params.dst.num_blocks) {
        continue;
      }
      *reinterpret_cast<Word*>(to.data + copy.dst * to.block_stride + byte) =
          *reinterpret_cast<const Word*>(from.data + copy.src * from.block_stride + byte);
    }
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    DeviceCopiesKernel(const __grid_constant__ KernelParams params) {
  CopyAll<Word>(params, params.copies, params.src.pieces, params.dst.pieces);
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    InlineCopiesKernel(const __grid_constant__ KernelParams params,
                       const __grid_constant__ InlineCopies<kMaxInlineCopies> list) {
  CopyAll<Word>(params, list.copies, params.src.pieces, params.dst.pieces);
}

template <typename Word>
__global__ void __launch_bounds__(kThreads)
    FewCopiesKernel(const __grid_constant__ KernelParams params,
                    const __grid_constant__ InlineCopies<kFewCopies> list,
                    const __grid_constant__ InlinePieces pieces) {
  CopyAll<Word>(params, list.copies, pieces.src, pieces.dst);
}

bool HasWork(const KernelParams& params) {
  return params.num_copies > 0 && params.src.num_pieces > 0;
}

bool HasWords(const KernelParams& params) {
  return std::min(params.src.word_bytes, params.dst.word_bytes) == sizeof(uint4);
}

dim3 GridOf(const KernelParams& params, int most_copies) {
  const int64_t bytes_per_cta = kThreads * (HasWords(params) ? sizeof(uint4) : 1);
  return dim3(static_cast<unsigned>((params.src.max_bytes + bytes_per_cta - 1) / bytes_per_cta),
              static_cast<unsigned>(std::min<int64_t>(params.num_copies, most_copies)),
              std::min(params.src.num_pieces, kMaxGridYZ));
}

void LaunchFew(const KernelParams& params, const BlockCopy* copies, cudaStream_t stream) {
  InlineCopies<kFewCopies> list = {};
  InlinePieces pieces = {};
  std::copy_n(copies, params.num_copies, list.copies);
  std::copy_n(params.src.host_pieces, params.src.num_pieces, pieces.src);
  std::copy_n(params.dst.host_pieces, params.dst.num_pieces, pieces.dst);
  const dim3 grid = GridOf(params, kMaxGridYZ);
  if (HasWords(params)) {
    FewCopiesKernel<uint4><<<grid, kThreads, 0, stream>>>(params, list, pieces);
  } else {
    FewCopiesKernel<uint8_t><<<grid, kThreads, 0, stream>>>(params, list, pieces);
  }
}

void LaunchMany(const KernelParams& params, const BlockCopy* copies, cudaStream_t stream) {
  InlineCopies<kMaxInlineCopies> list = {};
  std::copy_n(copies, params.num_copies, list.copies);
  const dim3 grid = GridOf(params, kMaxGridYZ);
  if (HasWords(params)) {
    InlineCopiesKernel<uint4><<<grid, kThreads, 0, stream>>>(params, list);
  } else {
    InlineCopiesKernel<uint8_t><<<grid, kThreads, 0, stream>>>(params, list);
  }
}

}  // namespace

cudaError_t LaunchInlineCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int num_copies, cudaStream_t stream) {
  if (num_copies > kMaxInlineCopies) return cudaErrorInvalidValue;
  const KernelParams params = {.src = src, .dst = dst, .copies = nullptr, .num_copies = num_copies};
  if (!HasWork(params)) return cudaSuccess;
  if (num_copies <= kFewCopies && src.num_pieces <= kFewPieces) {
    LaunchFew(params, copies, stream);
  } else {
    LaunchMany(params, copies, stream);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDeviceCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int64_t num_copies, cudaStream_t stream) {
  const KernelParams params = {.src = src, .dst = dst, .copies = copies, .num_copies = num_copies};
  if (!HasWork(params)) return cudaSuccess;
  if (HasWords(params)) {
    DeviceCopiesKernel<uint4><<<GridOf(params, kDeviceListCtas), kThreads, 0, stream>>>(params);
  } else {
    DeviceCopiesKernel<uint8_t><<<GridOf(params, kDeviceListCtas), kThreads, 0, stream>>>(params);
  }
  return cudaGetLastError();
}

}  // namespace reprise
