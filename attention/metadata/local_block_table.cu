// Tables of virtual rows: one CTA per row, one thread per column. Bound: the bytes of the entries,
// 8 per column.

#include <cuda_runtime.h>

#include "reprise/attention/metadata/local_block_table.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    LocalBlockTableKernel(const __grid_constant__ LocalBlockTableArgs args) {
  const int v = blockIdx.x;
  const RowFault fault = LocalTableFault(args, v);
  const int32_t seq_len = fault == RowFault::kNone ? args.local.seq_lens[v] : 0;
  if (threadIdx.x == 0) {
    args.seq_lens[v] = seq_len;
    if (args.row_faults) args.row_faults[v] = static_cast<int32_t>(fault);
    if (args.num_faults && fault != RowFault::kNone) atomicAdd(args.num_faults, 1);
  }
  int32_t* entries = args.table.entries + v * args.table.row_stride;
#pragma unroll 4
  for (int column = threadIdx.x; column < args.table.max_blocks; column += kThreads) {
    entries[column] = seq_len > 0 ? LocalTableEntry(args, v, column) : 0;
  }
}

}  // namespace

absl::Status LaunchLocalBlockTable(const LocalBlockTableArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckLocalBlockTable(args));
  if (args.num_faults) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(args.num_faults, 0, sizeof(int32_t), stream),
                                       "clearing the faults of local block tables"));
  }
  if (args.local.num_rows == 0) return absl::OkStatus();
  LocalBlockTableKernel<<<args.local.num_rows, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "making local block tables");
}

}  // namespace reprise
