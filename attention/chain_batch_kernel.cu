// Chain batches: a warp a row, lanes over its tokens (attention/chain_batch_args.h).
//
// Bound: latency. A chain of loads a row (slot, seq_len and query_len, table entry), once to place
// the rows and once to write them, and some 20 bytes a token: about 2 us for 256 rows.

#include "attention/chain_batch_kernel.h"
#include "attention/row_packing.cuh"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads) ChainBatchKernel(const ChainBatchArgs args) {
  __shared__ PackingMemory memory;
  const PackedRow packed = PlaceRow(
      args.num_rows, memory, [&](int row) { return ChainRowLenOf(args, row).num_tokens; },
      [&](int row) {
        const int32_t slot = args.slots[row];
        PrefetchSlot(args.table, slot, LocalIndex(args.seq_len[slot], args.key_positions));
        if (args.first_token) Prefetch(args.first_token + slot);
        if (args.tokens) Prefetch(args.tokens + row * args.token_stride);
      });
  const int row = RowOfWarp();
  if (row < args.num_rows) WriteChainRow(WarpLanes(), args, row, packed.start);
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, packed.total);
}

}  // namespace

cudaError_t LaunchChainBatch(const ChainBatchArgs& args, cudaStream_t stream) {
  if (args.num_rows < 0 || args.num_tokens < 0 || args.num_certain < 0 ||
      args.max_query_len < args.num_certain || args.table.block_size < 1 ||
      args.max_context_len < 1 || !IsValid(args.key_positions)) {
    return cudaErrorInvalidValue;
  }
  ChainBatchKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
