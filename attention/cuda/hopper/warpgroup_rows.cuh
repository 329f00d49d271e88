// Assigns the 16-byte chunks of a tile's rows to the 128 threads of a warpgroup that copy them, and
// computes the offset of a chunk in the tile, on arrival and for the MMA.
//
// Each warp has a few whole rows in every pass, and the same rows in every tile. It therefore looks
// up their page addresses itself, and converts rows that it copied in place without synchronising
// with other warps.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_

namespace reprise {

// Rows of 16-bit elements: kTileRows rows of kRowChunks chunks, in panels of 8 chunks
// (warpgroup_products.cuh). kRowLanes threads share a row; each of them has every kRowLanes-th
// chunk.
template <int kTileRows, int kRowChunks, int kRowLanes>
struct WideRows {
  static constexpr int kLanes = kRowLanes;
  static constexpr int kChunkPasses = kRowChunks / kLanes;  // chunks per thread and row
  static constexpr int kRowsPerPass = 128 / kLanes;
  static constexpr int kRowsOfWarp = 32 / kLanes;  // per pass
  static constexpr int kPasses = kTileRows / kRowsPerPass;
  static constexpr int kPanelBytes = kTileRows * 128;
  static constexpr int kElements = 8;  // per chunk
  // Distance between a thread's consecutive chunks of a row.
  static constexpr int kChunkPassBytes = kLanes / 8 * kPanelBytes;
  static_assert(kLanes % 8 == 0 && kRowChunks % kLanes == 0, "a chunk pass covers whole panels");
  static_assert(kRowsPerPass % 8 == 0, "every pass has the same swizzle");
  static_assert(kPasses * kRowsOfWarp <= 32, "a lane looks up one row");

  // A thread's row and chunk in the first pass.
  static __device__ __forceinline__ int Row(int thread) { return thread / kLanes; }
  static __device__ __forceinline__ int Chunk(int thread) { return thread % kLanes; }

  // The offset of a chunk in the tile, in bytes.
  static __device__ __forceinline__ int PlaceOf(int row, int chunk) {
    return chunk / 8 * kPanelBytes + row * 128 + ((chunk ^ row) & 7) * 16;
  }
  static __device__ __forceinline__ int ArrivalOf(int row, int chunk) {
    return PlaceOf(row, chunk);
  }
};

// Rows that arrive as kRowChunks chunks of fp8 and are converted to twice that number of 16-bit
// chunks. They arrive in the first panels of the tile, each row in half of its final memory.
//
// Every 8 lanes have 4 chunks of each of two adjacent rows, so that both the fp8 chunks and the
// 16-bit chunks are in different banks.
template <int kTileRows, int kRowChunks>
struct NarrowRows {
  static constexpr int kLanes = kRowChunks;
  static constexpr int kChunkPasses = 1;
  static constexpr int kRowsPerPass = 128 / kLanes;
  static constexpr int kRowsOfWarp = 32 / kLanes;
  static constexpr int kPasses = kTileRows / kRowsPerPass;
  static constexpr int kPanelBytes = kTileRows * 128;
  static constexpr int kElements = 16;
  static constexpr int kChunkPassBytes = 0;  // there is one chunk pass
  static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);
  static_assert(kPasses * kRowsOfWarp <= 32);

  static __device__ __forceinline__ int Row(int thread) {
    const int lane = thread % 32;
    return thread / 32 * kRowsOfWarp + lane / (2 * kLanes) * 2 + lane / 4 % 2;
  }
  static __device__ __forceinline__ int Chunk(int thread) {
    return thread / 8 % (kLanes / 4) * 4 + thread % 4;
  }

  static __device__ __forceinline__ int ArrivalOf(int row, int chunk) {
    return (kLanes > 8 ? chunk / 8 * kPanelBytes : 0) + row * 128 +
           (chunk % 8 ^ (row & 1) << 2) * 16;
  }
  // The offset of the first of the two converted chunks. The second chunk is at this offset ^ 16.
  static __device__ __forceinline__ int PlaceOf(int row, int chunk) {
    return WideRows<kTileRows, 2 * kRowChunks, 8>::PlaceOf(row, 2 * chunk);
  }
};

// The row whose address this thread looks up: one row of its warp per lane. Lanes without a row get
// a row at or past the end of the tile.
template <typename Rows>
__device__ __forceinline__ int OwnRow(int thread) {
  const int lane = thread % 32;
  return lane / Rows::kRowsOfWarp * Rows::kRowsPerPass + thread / 32 * Rows::kRowsOfWarp +
         lane % Rows::kRowsOfWarp;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_
