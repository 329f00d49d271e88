// Prefix sums of lengths: one thread per row, in every CTA, then one thread per token. Bound:
// latency; 12 bytes per token.

#include "attention/metadata/ragged_builder_kernel.h"
#include "base/cta_scan.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 256;  // and rows of a round
constexpr int kMaxCtas = 132;

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  int num_faults;
  int32_t first_token[kThreads];
};

__global__ void __launch_bounds__(kThreads) RaggedGatherKernel(const RaggedGather gather) {
  __shared__ SharedRows shared;
  if (threadIdx.x == 0) shared.num_faults = 0;
  const bool is_first = blockIdx.x == 0;
  const int first_thread = blockIdx.x * kThreads + threadIdx.x;
  const int num_threads = gridDim.x * kThreads;
  const bool has_keys = gather.kind != RaggedKind::kProfileZeros;
  int32_t num_tokens = 0;
  bool is_full = false;
  for (int round = 0; round < gather.num_rows; round += kThreads) {
    const int r = round + threadIdx.x;
    int32_t length = r < gather.num_rows ? gather.lens[r] : 0;
    bool bad = length < 0 || length > gather.max_len || (is_full && length > 0);
    if (bad) length = 0;
    CtaSum<int64_t> sum = ExclusiveSum<int64_t>(length, shared.scan);
    const bool fits = num_tokens + sum.before + length <= gather.num_tokens;
    if (__syncthreads_or(!fits)) {
      is_full = true;
      if (!fits && length > 0) {
        bad = true;
        length = 0;
      }
      sum = ExclusiveSum<int64_t>(length, shared.scan);
    }
    const auto first = static_cast<int32_t>(sum.before);
    const auto total = static_cast<int32_t>(sum.total);
    if (bad) atomicAdd(&shared.num_faults, 1);
    if (is_first && r < gather.num_rows) {
      gather.query_start_loc[r] = num_tokens + first;
      gather.key_start_loc[r] = has_keys ? num_tokens + first : 0;
    }
    shared.first_token[threadIdx.x] = first;
    __syncthreads();
    for (int t = first_thread; t < total; t += num_threads) {
      const int row = LastNotAfter<int32_t>(shared.first_token, kThreads, t);
      gather.positions[num_tokens + t] = t - shared.first_token[row];
    }
    num_tokens += total;
    __syncthreads();
  }
  for (int t = first_thread; t < gather.num_tokens; t += num_threads) {
    if (t >= num_tokens) gather.positions[t] = 0;
    if (gather.slot_mapping) gather.slot_mapping[t] = -1;
  }
  if (!is_first || threadIdx.x != 0) return;
  gather.query_start_loc[gather.num_rows] = num_tokens;
  gather.key_start_loc[gather.num_rows] = has_keys ? num_tokens : 0;
  *gather.num_faults = shared.num_faults;
}

}  // namespace

cudaError_t LaunchRaggedGather(const RaggedGather& gather, cudaStream_t stream) {
  if (gather.num_rows < 0 || gather.num_tokens < 0 || gather.max_len < 0 ||
      (gather.num_rows > 0 && !gather.lens) || !gather.query_start_loc || !gather.key_start_loc ||
      (gather.num_tokens > 0 && !gather.positions) || !gather.num_faults) {
    return cudaErrorInvalidValue;
  }
  const int wanted = (gather.num_tokens + kThreads - 1) / kThreads;
  const int ctas = wanted < 1 ? 1 : (wanted < kMaxCtas ? wanted : kMaxCtas);
  RaggedGatherKernel<<<ctas, kThreads, 0, stream>>>(gather);
  return cudaGetLastError();
}

}  // namespace reprise
