// Turns chains into trees with one warp per row. The lanes process the row's nodes
// (attention/speculation/tree_tokens_args.h).
//
// Bound: latency of a chain of dependent loads per row: the row's lengths, then one parent per
// level of the deepest node.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/attention/speculation/tree_tokens.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads)
    TreeTokensKernel(const __grid_constant__ TreeTokensArgs args) {
  const int row_idx = RowOfWarp();
  if (row_idx < args.num_rows) WriteTreeTokens(WarpLanes(), args, row_idx);
}

}  // namespace

absl::Status LaunchTreeTokens(const TreeTokensArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckTreeTokens(args));
  if (args.num_rows == 0) return absl::OkStatus();
  TreeTokensKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchTreeTokens");
}

}  // namespace reprise
