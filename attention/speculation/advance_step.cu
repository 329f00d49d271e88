// The advance of a decode step by one CTA: one thread per row, in rounds if there are more rows
// than threads (attention/speculation/advance_step_args.h).
//
// Bound: latency. Each row loads its length, table row and token at once, then its table entry; a
// prefix sum counts the live rows; 40 bytes per row. About 2 us for 256 rows.
//
// In place: a round reads its rows before its first barrier and writes them after; its token writes
// are at or before the indices of those rows.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "attention/speculation/advance_step.h"
#include "base/cuda_status.h"
#include "base/lanes.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;

__global__ void __launch_bounds__(kMaxThreads)
    AdvanceStepKernel(const __grid_constant__ AdvanceStepArgs args,
                      const __grid_constant__ RowArgs rows) {
  __shared__ int live_of_warp[kMaxWarps];
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
    __syncthreads();
  }
  if (threadIdx.x == 0) args.arrays.query_start_loc[args.num_rows] = num_live;
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
