// Every CTA computes the prefix sums of the lengths with one thread per row. Then one thread writes
// each token. Bound: latency; 12 bytes per token.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/ragged_gather.h"
#include "reprise/base/cta_scan.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;  // also the number of rows per round
constexpr int kMaxCtas = 132;

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  int32_t first_token[kThreads];
};

__global__ void __launch_bounds__(kThreads)
    RaggedGatherKernel(const __grid_constant__ RaggedGatherArgs args) {
  __shared__ SharedRows shared;
  const bool is_first = blockIdx.x == 0;
  const int first_thread = blockIdx.x * kThreads + threadIdx.x;
  const int num_threads = gridDim.x * kThreads;
  int32_t num_tokens = 0;
  int32_t num_faults = 0;
  bool is_full = false;
  for (int round = 0; round < args.num_rows; round += kThreads) {
    const int r = round + threadIdx.x;
    RaggedRow row;
    if (r < args.num_rows) row = RaggedRowOf(args, r);
    if (is_full && row.len > 0) row = {0, RowFault::kNoRoom};
    CtaSum<int64_t> sum = ExclusiveSum<int64_t>(row.len, shared.scan);
    const bool fits = num_tokens + sum.before + row.len <= args.num_tokens;
    if (__syncthreads_or(!fits)) {
      // The sums include rows that become empty. Sum again without these rows.
      is_full = true;
      if (!fits && row.len > 0) row = {0, RowFault::kNoRoom};
      sum = ExclusiveSum<int64_t>(row.len, shared.scan);
    }
    const auto first = static_cast<int32_t>(sum.before);
    const auto total = static_cast<int32_t>(sum.total);
    if (is_first && r < args.num_rows) WriteRaggedRow(args, r, num_tokens + first, row.fault);
    shared.first_token[threadIdx.x] = first;
    num_faults += __syncthreads_count(row.fault != RowFault::kNone);
    for (int t = first_thread; t < total; t += num_threads) {
      const int owner = LastNotAfter<int32_t>(shared.first_token, kThreads, t);
      WriteRaggedToken(args, num_tokens + t, t - shared.first_token[owner]);
    }
    num_tokens += total;
    __syncthreads();
  }
  for (int t = num_tokens + first_thread; t < args.num_tokens; t += num_threads) {
    WriteRaggedToken(args, t, 0);
  }
  if (!is_first || threadIdx.x != 0) return;
  WriteRaggedStart(args, args.num_rows, num_tokens);
  if (args.num_faults) *args.num_faults = num_faults;
}

}  // namespace

absl::Status LaunchRaggedGather(const RaggedGatherArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckRaggedGather(args));
  const int wanted = (args.num_tokens + kThreads - 1) / kThreads;
  const int ctas = wanted < 1 ? 1 : (wanted < kMaxCtas ? wanted : kMaxCtas);
  RaggedGatherKernel<<<ctas, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchRaggedGather");
}

}  // namespace reprise
