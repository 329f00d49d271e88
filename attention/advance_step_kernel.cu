// The advance of a decode step by one CTA: a thread a row, in rounds where there are more rows than
// threads (attention/advance_step_args.h).
//
// Bound: latency. Length, table row and token of a row at once, its table entry, a prefix sum of
// who goes on, and 40 bytes a row: about 2 us for 256 rows.
//
// In place: a round reads its rows before its first barrier and writes them after; what it writes
// for tokens lies at or before those rows.

#include "attention/advance_step_kernel.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;

__global__ void __launch_bounds__(kMaxThreads) AdvanceStepKernel(const AdvanceStepArgs args) {
  __shared__ int live_of_warp[kMaxWarps];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int num_warps = static_cast<int>(blockDim.x / 32);
  int num_live = 0;
  for (int base = 0; base < args.num_rows; base += static_cast<int>(blockDim.x)) {
    const int row = base + static_cast<int>(threadIdx.x);
    AdvancedRow next;
    if (row < args.num_rows) next = AdvancedRowOf(args, row);
    const unsigned live = __ballot_sync(~0u, next.slot >= 0);
    if (lane == 0) live_of_warp[warp] = __popc(live);
    __syncthreads();
    int token = num_live + __popc(live & ((1u << lane) - 1));
    for (int w = 0; w < num_warps; ++w) {
      if (w < warp) token += live_of_warp[w];
      num_live += live_of_warp[w];
    }
    if (row < args.num_rows) WriteAdvancedRow(args, row, token, next);
    __syncthreads();
  }
  if (threadIdx.x == 0) args.arrays.query_start_loc[args.num_rows] = num_live;
  for (int token = num_live + static_cast<int>(threadIdx.x); token < args.num_tokens;
       token += static_cast<int>(blockDim.x)) {
    WriteToken(args.arrays, token, {});
  }
}

}  // namespace

cudaError_t LaunchAdvanceStep(const AdvanceStepArgs& args, cudaStream_t stream) {
  if (args.num_rows < 0 || args.num_tokens < args.num_rows || args.table.block_size < 1 ||
      args.max_context_len < 1) {
    return cudaErrorInvalidValue;
  }
  const int wanted = (args.num_tokens + 31) / 32 * 32;
  const int threads = wanted < 32 ? 32 : (wanted < kMaxThreads ? wanted : kMaxThreads);
  AdvanceStepKernel<<<1, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
