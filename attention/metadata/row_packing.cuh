// Assigns the rows of a batch to the warps of a grid, one warp per row (several with SlicedLanes),
// and computes the first token of each row. For builder kernels with different numbers of tokens
// per row.
//
// Every CTA sums the token counts of all rows, so that one launch is enough and no CTA waits for
// another CTA. For 256 rows, each thread reads one count, from the L2 after the first CTA.

#ifndef REPRISE_ATTENTION_METADATA_ROW_PACKING_CUH_
#define REPRISE_ATTENTION_METADATA_ROW_PACKING_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/base/host_device.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

inline constexpr int kPackingThreads = 256;
inline constexpr int kPackingWarps = kPackingThreads / 32;  // rows of a CTA

inline int PackingCtas(int num_rows) {
  return num_rows <= kPackingWarps ? 1 : (num_rows + kPackingWarps - 1) / kPackingWarps;
}

// The lanes of a warp (base/lanes.h).
class WarpLanes {
 public:
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) const {
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x % 32; i < n; i += 32) body(i);
#endif
  }

  template <typename Predicate>
  REPRISE_HOST_DEVICE bool Any(int n, Predicate predicate) const {
    bool any = false;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x % 32; i < n; i += 32) any = any || predicate(i);
    any = __any_sync(~0u, any);
#endif
    return any;
  }

  template <typename Predicate>
  REPRISE_HOST_DEVICE int First(int begin, int end, Predicate predicate) const {
#if defined(__CUDA_ARCH__)
    const int lane = threadIdx.x % 32;
    for (; begin < end; begin += 32) {
      const unsigned found = __ballot_sync(~0u, begin + lane < end && predicate(begin + lane));
      if (found != 0) return begin + __ffs(static_cast<int>(found)) - 1;
    }
#endif
    return end;
  }

  REPRISE_HOST_DEVICE void Sync() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
};

// The lanes of several warps that share a row. ForEach() is divided over the y dimension of the
// grid. All other calls run in full in each warp.
class SlicedLanes : public WarpLanes {
 public:
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) const {
#if defined(__CUDA_ARCH__)
    const int first = static_cast<int>(blockIdx.y) * 32 + static_cast<int>(threadIdx.x) % 32;
    for (int i = first; i < n; i += static_cast<int>(gridDim.y) * 32) body(i);
#endif
  }
};

// Returns the row of this warp, which may be beyond the last row.
__device__ inline int RowOfWarp() {
  return static_cast<int>(blockIdx.x) * kPackingWarps + static_cast<int>(threadIdx.x) / 32;
}

struct PackedRow {
  int64_t start;  // tokens of all rows before this warp's row
  int64_t total;  // tokens of all rows
};

struct PackingMemory {
  int64_t before[kPackingWarps];
  int64_t total[kPackingWarps];
  int32_t own[kPackingWarps];  // tokens of this CTA's rows
};

// Prefetches the cache line of an address, which need not be valid.
__device__ inline void Prefetch(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

// Prefetches the cache line with the table entry of the token at `position`.
// REQUIRES: as for TableSlot().
__device__ inline void PrefetchSlot(const BlockTableView& table, int64_t row, int64_t position) {
  Prefetch(table.entries + row * table.row_stride + static_cast<int>(position) / table.block_size);
}

// Computes the first token of this warp's row. count_of(row) returns the row's number of tokens, at
// least 0. ask_for(row) is called for each row of this CTA that has tokens, to prefetch its data.
// REQUIRES: called by all threads of a CTA of kPackingThreads threads.
template <typename CountOf, typename AskFor>
__device__ PackedRow PlaceRow(int num_rows, PackingMemory& memory, CountOf count_of,
                              AskFor ask_for) {
  const int first = static_cast<int>(blockIdx.x) * kPackingWarps;
  int64_t before = 0;
  int64_t total = 0;
  for (int row = threadIdx.x; row < num_rows; row += kPackingThreads) {
    const int32_t count = count_of(row);
    total += count;
    if (row < first) before += count;
    if (row >= first && row < first + kPackingWarps) {
      memory.own[row - first] = count;
      if (count > 0) ask_for(row);
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    before += __shfl_xor_sync(~0u, before, distance);
    total += __shfl_xor_sync(~0u, total, distance);
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    memory.before[warp] = before;
    memory.total[warp] = total;
  }
  __syncthreads();
  PackedRow packed = {0, 0};
  for (int w = 0; w < kPackingWarps; ++w) {
    packed.start += memory.before[w];
    packed.total += memory.total[w];
    if (w < warp && first + w < num_rows) packed.start += memory.own[w];
  }
  return packed;
}

// Writes the last entry of query_start_loc, and makes the tokens after the live ones inert. Called
// by all threads of the grid.
__device__ inline void FinishTokens(const BatchArrays& arrays, int num_rows, int num_tokens,
                                    int64_t num_live) {
  const int64_t end = num_live < num_tokens ? num_live : num_tokens;
  const int64_t cta = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const int64_t thread = cta * blockDim.x + threadIdx.x;
  if (thread == 0) arrays.query_start_loc[num_rows] = static_cast<int32_t>(end);
  for (int64_t token = end + thread; token < num_tokens;
       token += static_cast<int64_t>(gridDim.y) * gridDim.x * blockDim.x) {
    WriteToken(arrays, token, {});
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_ROW_PACKING_CUH_
