// Batches of token trees: one warp per row, lanes over its nodes
// (attention/speculation/tree_batch_args.h). The row's parents and masks are in shared memory,
// where paths are found by doubling.
//
// Bound: latency. The loads of a chain batch, with parents at the same time, and a round of shared
// memory for each doubling of the longest path: six for 64 nodes in a line.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "attention/metadata/row_packing.cuh"
#include "attention/speculation/tree_batch.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

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
    WriteTreeRow(WarpLanes(), args, rows, row, packed.start, scratch[threadIdx.x / 32]);
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
