// Copies of blocks piece by piece, as the kernel sees them. Plain values.

#ifndef CACHE_COPY_PIECES_H_
#define CACHE_COPY_PIECES_H_

#include <cstddef>
#include <cstdint>

namespace reprise {

// Extents are cut into pieces of at most so many bytes: what one CTA copies at a time.
inline constexpr int64_t kPieceBytes = 16384;

// A contiguous part of each block: of block b at data + b * block_stride.
struct CopyPiece {
  std::byte* data = nullptr;
  int64_t block_stride = 0;  // bytes
  int64_t bytes = 0;
};

// The pieces of a store's blocks.
struct CopyPieces {
  const CopyPiece* pieces = nullptr;  // [num_pieces], on the device
  int num_pieces = 0;
  int num_blocks = 0;
  // Addresses, strides and sizes are multiples of it: 16 or 1.
  int word_bytes = 1;
};

}  // namespace reprise

#endif  // CACHE_COPY_PIECES_H_
