// Steps of a draft model (attention/draft_steps_args.h): for chains a thread a row and step, for a
// level of trees a warp a row.
//
// Bound: latency, of a chain of loads a row: slot, seq_len, parents, their masks, table entry.

#include "attention/draft_steps_kernel.h"
#include "attention/row_packing.cuh"

namespace reprise {
namespace {

constexpr int kChainThreads = 128;

__global__ void __launch_bounds__(kChainThreads) DraftChainKernel(const DraftChainArgs args) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int step = static_cast<int>(blockIdx.y);
  if (row < args.rows.num_rows) WriteDraftChainRow(args, step, row);
  if (args.rows.num_rows == 0 && row == 0)
    *StepArraysAt(args.arrays, step, 0, 1).query_start_loc = 0;
}

__global__ void __launch_bounds__(kPackingThreads) DraftLevelKernel(const DraftLevelArgs args) {
  const int row = RowOfWarp();
  if (row < args.rows.num_rows) WriteDraftLevelRow(WarpLanes(), args, row);
  if (args.rows.num_rows == 0 && threadIdx.x == 0) args.arrays.query_start_loc[0] = 0;
}

bool IsGood(const DraftRows& rows) {
  return rows.num_rows >= 0 && rows.table.block_size >= 1 && rows.max_context_len >= 1;
}

}  // namespace

cudaError_t LaunchDraftChain(const DraftChainArgs& args, cudaStream_t stream) {
  constexpr int kMaxSteps = 65535;  // of a grid's y
  if (!IsGood(args.rows) || args.num_steps < 0 || args.num_steps > kMaxSteps) {
    return cudaErrorInvalidValue;
  }
  if (args.num_steps == 0) return cudaSuccess;
  const int ctas =
      args.rows.num_rows == 0 ? 1 : (args.rows.num_rows + kChainThreads - 1) / kChainThreads;
  DraftChainKernel<<<dim3(ctas, args.num_steps), kChainThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchDraftLevel(const DraftLevelArgs& args, cudaStream_t stream) {
  if (!IsGood(args.rows) || args.width < 1 || args.step < 0 ||
      (static_cast<int64_t>(args.step) + 1) * args.width > kMaxTreeNodes ||
      args.arrays.tail_len == nullptr || args.arrays.tail_mask == nullptr ||
      args.node_masks == nullptr) {
    return cudaErrorInvalidValue;
  }
  DraftLevelKernel<<<PackingCtas(args.rows.num_rows), kPackingThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
