// Chain batches: one warp per row, lanes over its tokens (attention/metadata/chain_batch_args.h).
//
// Bound: latency. Each row has a chain of dependent loads (slot, seq_len and query_len, table
// entry), once to place the rows and once to write them, and about 20 bytes per token: about 2 us
// for 256 rows.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/chain_batch.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads)
    ChainBatchKernel(const __grid_constant__ ChainBatchArgs args,
                     const __grid_constant__ RankRowArgs rows) {
  __shared__ PackingMemory memory;
  const PackedRow packed = PlaceRow(
      args.num_rows, memory, [&](int row) { return ChainRowOf(args, rows, row).query_len; },
      [&](int row) {
        const int32_t slot = args.slots[row];
        PrefetchSlot(args.table, slot, LocalIndex(args.seq_len[slot], args.key_positions));
        if (args.first_token) Prefetch(args.first_token + slot);
        if (args.tokens) Prefetch(args.tokens + row * args.token_stride);
      });
  const int row = RowOfWarp();
  if (row < args.num_rows) WriteChainRow(WarpLanes(), args, rows, row, packed.start);
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, packed.total);
}

}  // namespace

absl::Status LaunchChainBatch(const ChainBatchArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckChainBatch(args));
  ChainBatchKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args,
                                                                               ChainRowArgs(args));
  return CudaStatus(cudaGetLastError(), "LaunchChainBatch");
}

}  // namespace reprise
