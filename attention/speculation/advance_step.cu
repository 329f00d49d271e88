// Advances a decode step with one CTA and one thread per row, in rounds if there are more rows than
// threads (attention/speculation/advance_step_args.h).
//
// Bound: latency. Each thread loads its row's length, table row and token together, then the table
// entry. A prefix sum counts the live rows. About 50 bytes per row.
//
// In place: a round reads its rows before its first barrier and writes them after that barrier. The
// tokens of a row are written at or before the row's index, so no unread row is overwritten.
//
// With a packed table, each round has three more barriers to count the blocks of the rows (five if
// a row has no room). Then each warp copies the blocks of its rows, one entry per lane.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/speculation/advance_step.h"
#include "reprise/base/cta_scan.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/host_device.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;

// The threads of a warp as the lanes of base/lanes.h.
class WarpLanes {
 public:
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) const {
#if defined(__CUDA_ARCH__)
    for (int i = static_cast<int>(threadIdx.x % 32); i < n; i += 32) body(i);
#endif
  }
};

// Number of blocks of the live rows so far in the packed table.
struct PackedCount {
  int64_t num_blocks = 0;
  bool is_full = false;
};

// Returns the index of the first block of this thread's row in the packed table. A live row without
// room gets the fault kNoRoom. REQUIRES: called by all threads of the CTA.
__device__ int64_t PlaceInPacked(const AdvanceStepArgs& args, CtaScanMemory<int64_t>& memory,
                                 PackedCount& count, CheckedRow& row) {
  if (count.is_full && row.is_live()) row.fault = RowFault::kNoRoom;
  CtaSum<int64_t> blocks = ExclusiveSum<int64_t>(PackedBlocksOf(args, row), memory);
  const bool fits =
      count.num_blocks + blocks.before + PackedBlocksOf(args, row) <= args.packed.max_indices;
  if (__syncthreads_or(row.is_live() && !fits)) {
    // The new sums exclude the first row without room and all rows after it.
    count.is_full = true;
    if (row.is_live() && !fits) row.fault = RowFault::kNoRoom;
    blocks = ExclusiveSum<int64_t>(PackedBlocksOf(args, row), memory);
  }
  const int64_t first = count.num_blocks + blocks.before;
  count.num_blocks += blocks.total;
  return first;
}

// Writes the rows of this warp to the packed table. Each thread passes one row.
__device__ void WritePackedRows(const AdvanceStepArgs& args, int row_idx, const CheckedRow& row,
                                int64_t first) {
  for (int lane = 0; lane < 32; ++lane) {
    const int its_row = __shfl_sync(~0u, row_idx, lane);
    const int64_t its_first = __shfl_sync(~0u, first, lane);
    CheckedRow its;
    its.table_row = __shfl_sync(~0u, row.table_row, lane);
    its.context_len = __shfl_sync(~0u, row.context_len, lane);
    its.query_len = __shfl_sync(~0u, row.is_live() ? 1 : 0, lane);
    if (its_row < args.num_rows) WritePackedRow(WarpLanes(), args, its_row, its, its_first);
  }
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    AdvanceStepKernel(const __grid_constant__ AdvanceStepArgs args,
                      const __grid_constant__ RowArgs rows) {
  __shared__ int live_of_warp[kMaxWarps];
  __shared__ CtaScanMemory<int64_t> scan;
  PackedCount packed;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int num_warps = static_cast<int>(blockDim.x / 32);
  int num_live = 0;
  for (int base = 0; base < args.num_rows; base += static_cast<int>(blockDim.x)) {
    const int row = base + static_cast<int>(threadIdx.x);
    CheckedRow next;
    int32_t token_id = 0;
    if (row < args.num_rows) {
      next = AdvancedRowOf(SerialLanes(), args, rows, row);
      token_id = args.sampled[row];
    }
    const int64_t first_block = HasPacked(args) ? PlaceInPacked(args, scan, packed, next) : 0;
    const unsigned live = __ballot_sync(~0u, next.is_live());
    if (lane == 0) live_of_warp[warp] = __popc(live);
    __syncthreads();
    int token = num_live + __popc(live & ((1u << lane) - 1));
    for (int w = 0; w < num_warps; ++w) {
      if (w < warp) token += live_of_warp[w];
      num_live += live_of_warp[w];
    }
    if (row < args.num_rows) {
      WriteBatchRow(rows, row, next, token);
      if (next.is_live()) WriteNewToken(rows, next, /*i=*/0, token, token_id);
    }
    if (HasPacked(args)) WritePackedRows(args, row, next, first_block);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    args.arrays.query_start_loc[args.num_rows] = num_live;
    if (HasPacked(args)) {
      args.packed.block_indptr[args.num_rows] = static_cast<int32_t>(packed.num_blocks);
    }
  }
  for (int token = num_live + static_cast<int>(threadIdx.x); token < args.num_tokens;
       token += static_cast<int>(blockDim.x)) {
    WriteInertToken(rows, token);
  }
}

}  // namespace

absl::Status LaunchAdvanceStep(const AdvanceStepArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckAdvanceStep(args));
  const int wanted = args.num_tokens < kMaxThreads ? (args.num_tokens + 31) / 32 * 32 : kMaxThreads;
  const int threads = wanted < 32 ? 32 : wanted;
  AdvanceStepKernel<<<1, threads, 0, stream>>>(args, AdvanceRowArgs(args));
  return CudaStatus(cudaGetLastError(), "LaunchAdvanceStep");
}

}  // namespace reprise
