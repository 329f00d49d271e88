// Writes the lengths and slots of a rank, with one thread per row and slot. Bound: latency of one
// load.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "reprise/attention/metadata/rank_rows.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    RankRowsKernel(const __grid_constant__ RankRowsArgs args) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (blockIdx.y == 0 && i < args.num_rows) WriteRankRow(args, i);
  if (i < args.num_tokens && static_cast<int>(blockIdx.y) < args.num_groups) {
    WriteRankSlot(args, blockIdx.y, i);
  }
}

}  // namespace

absl::Status LaunchRankRows(const RankRowsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckRankRows(args));
  const int count = std::max(args.num_rows, args.num_tokens);
  if (count == 0) return absl::OkStatus();
  const dim3 grid((count + kThreads - 1) / kThreads, std::max(args.num_groups, 1));
  RankRowsKernel<<<grid, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchRankRows");
}

}  // namespace reprise
