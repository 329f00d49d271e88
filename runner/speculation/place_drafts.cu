// Writes the drafts of heads, one thread per row (runner/speculation/place_drafts_args.h).
//
// Bound: latency of a launch and of several dependent loads, about 3 us.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/place_drafts.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    PlaceDraftsKernel(const __grid_constant__ PlaceDraftsArgs args) {
  const int row_idx = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row_idx < args.num_rows) PlaceRowsDrafts(args, row_idx);
}

}  // namespace

absl::Status LaunchPlaceDrafts(const PlaceDraftsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckPlaceDrafts(args));
  if (args.num_rows == 0) return absl::OkStatus();
  PlaceDraftsKernel<<<(args.num_rows - 1) / kThreads + 1, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchPlaceDrafts");
}

}  // namespace reprise
