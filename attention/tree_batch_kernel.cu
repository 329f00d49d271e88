// Batches of token trees: a warp a row, lanes over its nodes (attention/tree_batch_args.h). The
// row's parents and masks lie in shared memory, where paths are found by doubling.
//
// Bound: latency. The loads of a chain batch, parents beside them, and a round of shared memory for
// each doubling of the longest path: six for 64 nodes in a line.

#include "attention/row_packing.cuh"
#include "attention/tree_batch_kernel.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads) TreeBatchKernel(const TreeBatchArgs args) {
  __shared__ PackingMemory memory;
  __shared__ TreeScratch scratch[kPackingWarps];
  const PackedRow packed = PlaceRow(
      args.num_rows, memory, [&](int row) { return TreeRowLenOf(args, row).num_nodes; },
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
    WriteTreeRow(WarpLanes(), args, row, packed.start, scratch[threadIdx.x / 32]);
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, packed.total);
}

}  // namespace

cudaError_t LaunchTreeBatch(const TreeBatchArgs& args, cudaStream_t stream) {
  if (args.num_rows < 0 || args.num_tokens < 0 || args.max_nodes < 1 ||
      args.max_nodes > kMaxTreeNodes || args.table.block_size < 1 || args.max_context_len < 1 ||
      args.arrays.tail_len == nullptr || args.arrays.tail_mask == nullptr) {
    return cudaErrorInvalidValue;
  }
  TreeBatchKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
