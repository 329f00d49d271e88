// Builds the rows of a draft model's pass with one warp per row. The lanes process the row's tokens
// (attention/speculation/draft_rows_args.h).
//
// Bound: latency. Each row has a chain of dependent loads (slot, lengths, table entry). The first
// two are loaded twice: once to compute the first tokens of the rows and prefetch the table
// entries, once to write the rows. A token takes about 20 bytes.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

__global__ void __launch_bounds__(kPackingThreads)
    DraftRowsKernel(const __grid_constant__ DraftRowsArgs args,
                    const __grid_constant__ RowArgs rows) {
  __shared__ PackingMemory memory;
  const PackedRow packed = PlaceRow(
      args.rows.num_rows, memory,
      [&](int row_idx) { return DraftPassRowOf(args, rows, row_idx).query_len; },
      [&](int row_idx) {
        const CheckedRow row = DraftPassRowOf(args, rows, row_idx);
        PrefetchSlot(rows.table, row.table_row, row.context_len);
      });
  const int row_idx = RowOfWarp();
  if (row_idx < args.rows.num_rows) {
    const WarpLanes lanes;
    if (args.pass > 0) KeepDraftPass(lanes, args, row_idx);
    lanes.Sync();
    WriteDraftPassRow(lanes, args, rows, row_idx, packed.start);
  }
  const int64_t end = packed.total < args.rows.num_tokens ? packed.total : args.rows.num_tokens;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kPackingThreads + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * kPackingThreads;
  for (int64_t token = end + thread; token < args.rows.num_tokens; token += num_threads) {
    WriteInertToken(rows, token);
  }
  if (thread == 0) WriteDraftPassEnd(args, end);
}

// Stores the drafts of the last pass.
__global__ void __launch_bounds__(kPackingThreads)
    KeepLastDraftKernel(const __grid_constant__ DraftRowsArgs args) {
  const int row_idx = RowOfWarp();
  if (row_idx < args.rows.num_rows) KeepDraftPass(WarpLanes(), args, row_idx);
}

}  // namespace

absl::Status LaunchDraftRows(const DraftRowsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckDraftRows(args));
  if (args.rows.num_rows == 0) return absl::OkStatus();
  if (args.pass == NumPasses(args)) {
    KeepLastDraftKernel<<<PackingCtas(args.rows.num_rows), kPackingThreads, 0, stream>>>(args);
  } else {
    DraftRowsKernel<<<PackingCtas(args.rows.num_rows), kPackingThreads, 0, stream>>>(
        args, DraftPassRowArgs(args));
  }
  return CudaStatus(cudaGetLastError(), "LaunchDraftRows");
}

}  // namespace reprise
