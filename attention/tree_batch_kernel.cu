// Batches of token trees: a warp a row, lanes over its nodes (attention/tree_batch_args.h). The
// row's parents lie in shared memory, where every node walks its path.
//
// Bound: latency. The loads of a chain batch, and the longest path: 64 nodes in a line are some 64
// loads from shared memory, one behind the other, about 1 us.

#include "attention/row_packing.cuh"
#include "attention/tree_batch_kernel.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads) TreeBatchKernel(const TreeBatchArgs args) {
  __shared__ PackingMemory memory;
  __shared__ int32_t parents[kPackingWarps][kMaxTreeNodes];
  const PackedRow packed =
      PlaceRow(args.num_rows, memory, [&](int row) { return TreeRowLenOf(args, row).num_nodes; });
  const int row = RowOfWarp();
  if (row < args.num_rows) {
    WriteTreeRow(WarpLanes(), args, row, packed.start, parents[threadIdx.x / 32]);
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
