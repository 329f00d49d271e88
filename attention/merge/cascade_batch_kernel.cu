// The cut of a batch at its shared prefix, by one CTA: one thread per row, in rounds if there are
// more rows than threads.
//
// Bound: latency of loading a row's lengths and of two votes.

#include <climits>

#include "attention/merge/cascade_batch_kernel.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;

__global__ void __launch_bounds__(kMaxThreads) CascadeBatchKernel(const CascadeBatchArgs args) {
  __shared__ int first_live;
  if (threadIdx.x == 0) first_live = INT_MAX;
  __syncthreads();
  int32_t prefix = *args.batch.common_prefix_len;
  bool refuses = prefix < 0;
  int first = INT_MAX;
  const int stride = static_cast<int>(blockDim.x);
  for (int row = static_cast<int>(threadIdx.x); row < args.batch.num_rows; row += stride) {
    refuses = refuses || !AllowsPrefix(args, row, prefix);
    if (IsLive(args, row)) first = min(first, row);
  }
  first = __reduce_min_sync(~0u, first);
  if (threadIdx.x % 32 == 0 && first < INT_MAX) atomicMin(&first_live, first);
  if (__syncthreads_or(refuses)) prefix = 0;
  if (first_live == INT_MAX) prefix = 0;
  for (int row = static_cast<int>(threadIdx.x); row < args.batch.num_rows; row += stride) {
    WriteSuffix(args, row, prefix);
  }
  if (threadIdx.x == 0) WritePrefix(args, first_live, prefix);
}

}  // namespace

cudaError_t LaunchCascadeBatch(const CascadeBatchArgs& args, cudaStream_t stream) {
  if (args.block_size < 1 || args.batch.num_rows < 0 || args.batch.key_positions.world != 1 ||
      args.batch.common_prefix_len == nullptr) {
    return cudaErrorInvalidValue;
  }
  const int wanted = (args.batch.num_rows + 31) / 32 * 32;
  const int threads = wanted < 32 ? 32 : (wanted < kMaxThreads ? wanted : kMaxThreads);
  CascadeBatchKernel<<<1, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
