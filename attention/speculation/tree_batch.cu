// Batches of token trees: one warp per row, lanes over its nodes
// (attention/speculation/tree_batch_args.h). The row's parents and masks are in shared memory,
// where paths are found by doubling.
//
// Bound: latency. The loads of a chain batch, with parents at the same time, and a round of shared
// memory for each doubling of the longest path: six for 64 nodes in a line.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/attention/speculation/token_tree.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/host_device.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

class WarpTreeLanes : public WarpLanes {
 public:
  // By doubling: after round k a mask holds the 2^k nearest nodes of its path. `parents` becomes
  // the next ancestors after them, finally all -1. Both are in shared memory.
  REPRISE_HOST_DEVICE void PathMasks([[maybe_unused]] int n, [[maybe_unused]] int32_t* parents,
                                     [[maybe_unused]] uint64_t* masks) const {
#if defined(__CUDA_ARCH__)
    const int lane = threadIdx.x % 32;
    uint64_t mask[2];
    int32_t ancestor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int node = lane + 32 * half;
      mask[half] = NodeBit(node);
      ancestor[half] = node < n ? parents[node] : -1;
      if (node < n) masks[node] = mask[half];
    }
    __syncwarp();
    while (__any_sync(~0u, ancestor[0] >= 0 || ancestor[1] >= 0)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (ancestor[half] < 0) continue;
        mask[half] |= masks[ancestor[half]];
        ancestor[half] = parents[ancestor[half]];
      }
      __syncwarp();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int node = lane + 32 * half;
        if (node >= n) continue;
        masks[node] = mask[half];
        parents[node] = ancestor[half];
      }
      __syncwarp();
    }
#endif
  }
};

__global__ void __launch_bounds__(kPackingThreads)
    TreeBatchKernel(const __grid_constant__ TreeBatchArgs args,
                    const __grid_constant__ RowArgs rows) {
  __shared__ PackingMemory memory;
  __shared__ TreeScratch scratch[kPackingWarps];
  const PackedRow packed = PlaceRow(
      args.num_rows, memory, [&](int row) { return TreeRowOf(args, rows, row).query_len; },
      [&](int row) {
        const int32_t slot = args.slots[row];
        const int32_t* parents = args.parents + row * args.parent_stride;
        Prefetch(parents);
        Prefetch(parents + args.num_nodes[row] - 1);
        PrefetchSlot(args.table, slot, args.seq_len[slot]);
        if (args.first_token) Prefetch(args.first_token + slot);
        if (args.tokens) Prefetch(args.tokens + row * args.token_stride);
      });
  const int row = RowOfWarp();
  if (row < args.num_rows) {
    WriteTreeRow(WarpTreeLanes(), args, rows, row, packed.start, scratch[threadIdx.x / 32]);
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, packed.total);
}

}  // namespace

absl::Status LaunchTreeBatch(const TreeBatchArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckTreeBatch(args));
  TreeBatchKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args,
                                                                              TreeRowArgs(args));
  return CudaStatus(cudaGetLastError(), "LaunchTreeBatch");
}

}  // namespace reprise
