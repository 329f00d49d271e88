// Verification of trees of drafts: one warp per row. The path is walked node by node, and lanes
// look for the draft that follows, among the nodes behind it
// (runner/speculation/verify_trees_args.h).
//
// Bound: latency of a chain of dependent loads per node of the path, from the L1 after the first.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/host_device.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/verify_trees.h"

namespace reprise {
namespace {

class TreeLanes : public WarpLanes {
 public:
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
};

__global__ void __launch_bounds__(kPackingThreads)
    VerifyTreesKernel(const __grid_constant__ VerifyTreesArgs args) {
  const int row_idx = RowOfWarp();
  if (row_idx < args.drafts.num_rows) WriteVerifiedTree(TreeLanes(), args, row_idx);
}

}  // namespace

absl::Status LaunchVerifyTrees(const VerifyTreesArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckVerifyTrees(args));
  if (args.drafts.num_rows == 0) return absl::OkStatus();
  VerifyTreesKernel<<<PackingCtas(args.drafts.num_rows), kPackingThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchVerifyTrees");
}

}  // namespace reprise
