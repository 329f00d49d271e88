// Verification of drafts: one warp per row, lanes over the places that it chooses a token for
// (runner/speculation/verify_drafts_args.h).
//
// Bound: latency of a chain of dependent loads per row (slot and lengths, chosen tokens and drafts,
// the slot), about 3 us.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/speculation/verify_drafts.h"

namespace reprise {
namespace {

constexpr unsigned kAllLanes = ~0u;
static_assert(kMaxDrafts < 32, "a lane for each place");

__global__ void __launch_bounds__(kPackingThreads)
    VerifyDraftsKernel(const __grid_constant__ VerifyDraftsArgs args) {
  const int row_idx = RowOfWarp();
  if (row_idx >= args.num_rows) return;
  const int lane = threadIdx.x % 32;
  if (!HasOutput(args)) {
    if (lane == 0) WriteNoOutput(args, row_idx);
    return;
  }
  const VerifiedRow row = VerifiedRowOf(args, row_idx);
  if (row.slot < 0) {
    if (lane == 0) WriteNotSampled(args, row_idx);
    return;
  }
  const int32_t chosen = lane <= row.num_drafts ? ChosenAt(args, row_idx, row, lane) : -1;
  const bool is_accepted = lane < row.num_drafts && IsAccepted(args, row, lane, chosen);
  const int num_accepted = __ffs(~__ballot_sync(kAllLanes, is_accepted)) - 1;
  const bool has_more = __shfl_sync(kAllLanes, chosen, num_accepted) >= 0;
  WriteVerifiedRow(WarpLanes(), args, row_idx, row, num_accepted + (has_more ? 1 : 0));
}

}  // namespace

absl::Status LaunchVerifyDrafts(const VerifyDraftsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckVerifyDrafts(args));
  if (args.num_rows == 0) return absl::OkStatus();
  VerifyDraftsKernel<<<PackingCtas(args.num_rows), kPackingThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchVerifyDrafts");
}

}  // namespace reprise
