// Acceptance: a warp a row, lanes over what stays of it (attention/accept_drafts_args.h).
//
// Bound: latency, of a chain of loads a row: lengths, nodes, their masks, table entries.

#include "attention/accept_drafts_kernel.h"
#include "attention/row_packing.cuh"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads) AcceptDraftsKernel(const AcceptDraftsArgs args) {
  const int row = RowOfWarp();
  if (row < args.num_rows) WriteAcceptedRow(WarpLanes(), args, row);
}

}  // namespace

cudaError_t LaunchAcceptDrafts(const AcceptDraftsArgs& args, cudaStream_t stream) {
  const bool is_tree = args.tail_mask != nullptr;
  if (args.num_rows < 0 || args.num_tokens < 0 || args.max_accepted < 1 ||
      args.max_accepted > kMaxTreeNodes || args.table.block_size < 1 ||
      (is_tree && (args.accepted_nodes == nullptr || args.move_from == nullptr)) ||
      (args.move_from == nullptr) != (args.move_to == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (args.num_rows == 0) return cudaSuccess;
  AcceptDraftsKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
