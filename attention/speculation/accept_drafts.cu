// Accepts drafts with one warp per row. For chains, the lanes compare the drafts. For trees, the
// warp follows the path node by node, and the lanes search the children of a node
// (attention/speculation/accept_drafts_args.h).
//
// Bound: latency of a chain of dependent loads per row: slot and lengths, choices and drafts, and
// the slot's state. Each further node of a path is read from the L1.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/attention/speculation/accept_drafts.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads)
    AcceptDraftsKernel(const __grid_constant__ AcceptDraftsArgs args) {
  const int row = RowOfWarp();
  if (row < args.num_rows) AcceptRow(WarpLanes(), args, row);
}

}  // namespace

absl::Status LaunchAcceptDrafts(const AcceptDraftsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckAcceptDrafts(args));
  if (args.num_rows == 0) return absl::OkStatus();
  AcceptDraftsKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchAcceptDrafts");
}

}  // namespace reprise
