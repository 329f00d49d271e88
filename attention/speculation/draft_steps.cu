// Steps of a draft model (attention/speculation/draft_steps_args.h): for chains one thread per row
// and step, for a level of trees one warp per row.
//
// Bound: latency of a chain of dependent loads per row: slot, seq_len, parents, their masks, table
// entry.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/attention/speculation/draft_steps.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kChainThreads = 128;

__global__ void __launch_bounds__(kChainThreads)
    DraftChainKernel(const __grid_constant__ DraftChainArgs args,
                     const __grid_constant__ RowArgs rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int step = static_cast<int>(blockIdx.y);
  if (row < rows.num_rows) WriteDraftChainRow(args, rows, step, row);
  if (rows.num_rows == 0 && row == 0) *StepArraysAt(args.arrays, step, 0, 1).query_start_loc = 0;
}

__global__ void __launch_bounds__(kPackingThreads)
    DraftLevelKernel(const __grid_constant__ DraftLevelArgs args,
                     const __grid_constant__ RowArgs rows) {
  const int row = RowOfWarp();
  if (row < rows.num_rows) WriteDraftLevelRow(WarpLanes(), args, rows, row);
  if (rows.num_rows == 0 && threadIdx.x == 0) args.arrays.query_start_loc[0] = 0;
}

}  // namespace

absl::Status LaunchDraftChain(const DraftChainArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckDraftChain(args));
  if (args.num_steps == 0) return absl::OkStatus();
  const int ctas = args.rows.num_rows == 0 ? 1 : (args.rows.num_rows - 1) / kChainThreads + 1;
  DraftChainKernel<<<dim3(ctas, args.num_steps), kChainThreads, 0, stream>>>(
      args, DraftRowArgs(args.rows, /*width=*/1));
  return CudaStatus(cudaGetLastError(), "LaunchDraftChain");
}

absl::Status LaunchDraftLevel(const DraftLevelArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckDraftLevel(args));
  DraftLevelKernel<<<PackingCtas(args.rows.num_rows), kPackingThreads, 0, stream>>>(
      args, DraftRowArgs(args.rows, args.width));
  return CudaStatus(cudaGetLastError(), "LaunchDraftLevel");
}

}  // namespace reprise
