// How the 128 threads of a warpgroup divide the rows of a tile that they copy, in chunks of 16
// bytes; and where in the tile a chunk is, when multiplied and when it arrives.
//
// Each warp has the same few whole rows at every pass over the tile, so it finds their places
// itself, and converts in place what has arrived without synchronising with other warps.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_

namespace reprise {

// kTileRows rows of kRowChunks chunks, 16 bits per element, in panels of 8 chunks
// (warpgroup_products.cuh). kRowLanes threads have a row, each of them every kRowLanes-th chunk.
template <int kTileRows, int kRowChunks, int kRowLanes>
struct WideRows {
  static constexpr int kLanes = kRowLanes;
  static constexpr int kChunkPasses = kRowChunks / kLanes;  // chunks of a thread and row
  static constexpr int kRowsPerPass = 128 / kLanes;
  static constexpr int kRowsOfWarp = 32 / kLanes;  // in a pass
  static constexpr int kPasses = kTileRows / kRowsPerPass;
  static constexpr int kPanelBytes = kTileRows * 128;
  static constexpr int kElements = 8;  // in a chunk
  // From a thread's chunk of a row to its next one.
  static constexpr int kChunkPassBytes = kLanes / 8 * kPanelBytes;
  static_assert(kLanes % 8 == 0 && kRowChunks % kLanes == 0, "a pass is of whole panels");
  static_assert(kRowsPerPass % 8 == 0, "the permutation is the same at every pass");
  static_assert(kPasses * kRowsOfWarp <= 32, "a lane finds the place of one row");

  // A thread's row and chunk at the first pass.
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

// Rows that arrive as kRowChunks chunks of fp8 and become twice as many chunks of 16 bits. They
// arrive in the first panels, each row in the first half of its final place.
//
// Each 8 lanes have half of two adjacent rows, so that chunks of both kinds are in different banks.
template <int kTileRows, int kRowChunks>
struct NarrowRows {
  static constexpr int kLanes = kRowChunks;
  static constexpr int kChunkPasses = 1;
  static constexpr int kRowsPerPass = 128 / kLanes;
  static constexpr int kRowsOfWarp = 32 / kLanes;
  static constexpr int kPasses = kTileRows / kRowsPerPass;
  static constexpr int kPanelBytes = kTileRows * 128;
  static constexpr int kElements = 16;
  static constexpr int kChunkPassBytes = 0;  // there is one pass
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
  // The first chunk of the pair; the other is at that offset ^ 16.
  static __device__ __forceinline__ int PlaceOf(int row, int chunk) {
    return WideRows<kTileRows, 2 * kRowChunks, 8>::PlaceOf(row, 2 * chunk);
  }
};

// The row, among those of its warp, whose place a thread finds, one per lane. At or past the tile's
// last for the remaining lanes.
template <typename Rows>
__device__ __forceinline__ int OwnRow(int thread) {
  const int lane = thread % 32;
  return lane / Rows::kRowsOfWarp * Rows::kRowsPerPass + thread / 32 * Rows::kRowsOfWarp +
         lane % Rows::kRowsOfWarp;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_ROWS_CUH_
