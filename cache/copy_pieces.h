// Copies of blocks piece by piece, as the kernel sees them. Plain values.

#ifndef CACHE_COPY_PIECES_H_
#define CACHE_COPY_PIECES_H_

#include <cstddef>
#include <cstdint>

namespace reprise {

// A contiguous part of each block: of block b at data + b * block_stride.
struct CopyPiece {
  std::byte* data = nullptr;
  int64_t block_stride = 0;  // bytes
  int64_t bytes = 0;
};

// The pieces of a store's blocks.
struct CopyPieces {
  const CopyPiece* pieces = nullptr;       // [num_pieces], on the device
  const CopyPiece* host_pieces = nullptr;  // the same list (of device addresses), on the host
  int num_pieces = 0;
  int64_t max_bytes = 0;  // of the largest piece
  int num_blocks = 0;
  // Addresses, strides and sizes are multiples of it: 16 or 1.
  int word_bytes = 1;
};

}  // namespace reprise

#endif  // CACHE_COPY_PIECES_H_
