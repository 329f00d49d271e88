// Gathers a batch with one warp per row, or several warps per row if rows may be long. The lanes
// process the row's tokens (attention/metadata/batch_gather_args.h).
//
// Bound: latency. Each row has a chain of dependent loads (table row, length, table entry). The
// first two are loaded twice: once to compute the first tokens of the rows and prefetch the table
// entries, once to write the rows. A token takes about 20 bytes.

#include <cuda_runtime.h>

#include <algorithm>

#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kTokensPerSlice = 128;  // four rounds of a warp
constexpr int kMaxCtas = 256;         // bounds the cost: each CTA sums the tokens of all rows

__global__ void __launch_bounds__(kPackingThreads)
    BatchGatherKernel(const __grid_constant__ BatchGatherArgs args,
                      const __grid_constant__ RankRowArgs rows) {
  __shared__ PackingMemory memory;
  const int num_live_rows = NumLiveRows(args);
  const PackedRow packed = PlaceRow(
      args.num_rows, memory,
      [&](int r) { return GatheredRow(args, rows, num_live_rows, r).query_len; },
      [&](int r) {
        const CheckedRow row = GatheredRow(args, rows, num_live_rows, r);
        PrefetchSlot(args.table, row.table_row, PlaceOf(rows, row, row.context_len));
        if (args.first_token) Prefetch(args.first_token + row.table_row);
        if (args.tokens) Prefetch(args.tokens + r * args.token_stride);
      });
  const int r = RowOfWarp();
  if (r < args.num_rows) {
    const CheckedRow row = GatheredRow(args, rows, num_live_rows, r);
    const RowFault fault = WriteGatheredRow(SlicedLanes(), args, rows, r, row, packed.start);
    if (args.num_faults && fault != RowFault::kNone) {
      SlicedLanes().ForEach(1, [&](int) { atomicAdd(args.num_faults, 1); });
    }
  }
  FinishTokens(args.arrays, args.num_rows, args.num_tokens, packed.total);
}

// Returns the number of warps per row. With more than one warp per row, the grid has at most
// kMaxCtas CTAs.
int NumSlices(int num_ctas, int max_query_len) {
  return std::max(1, std::min(CeilDiv(max_query_len, kTokensPerSlice), kMaxCtas / num_ctas));
}

}  // namespace

absl::Status LaunchBatchGather(const BatchGatherArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckBatchGather(args));
  if (args.num_faults) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(args.num_faults, 0, sizeof(int32_t), stream),
                                       "clearing the faults of a gathered batch"));
  }
  const int ctas = PackingCtas(args.num_rows);
  const dim3 grid(ctas, NumSlices(ctas, std::min(args.max_query_len, args.num_tokens)));
  BatchGatherKernel<<<grid, kPackingThreads, 0, stream>>>(args, GatherRowArgs(args));
  return CudaStatus(cudaGetLastError(), "LaunchBatchGather");
}

}  // namespace reprise
