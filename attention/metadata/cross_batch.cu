// Gathers the encoder length of each row, with one thread per row. Bound: latency of up to three
// dependent loads.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    CrossBatchKernel(const __grid_constant__ CrossBatchArgs args) {
  const int r = blockIdx.x * kThreads + threadIdx.x;
  if (r >= args.rows.num_rows) return;
  const CrossRow row = CrossRowOf(args, r);
  WriteCrossRow(args, r, row);
  if (args.num_faults && row.fault != RowFault::kNone) atomicAdd(args.num_faults, 1);
}

}  // namespace

absl::Status LaunchCrossBatch(const CrossBatchArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckCrossBatch(args));
  if (args.num_faults) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(args.num_faults, 0, sizeof(int32_t), stream),
                                       "LaunchCrossBatch"));
  }
  if (args.rows.num_rows == 0) return absl::OkStatus();
  CrossBatchKernel<<<(args.rows.num_rows + kThreads - 1) / kThreads, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchCrossBatch");
}

}  // namespace reprise
