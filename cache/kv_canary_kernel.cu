// Marks slots, and checks the marks behind block tables.
//
// Bound of the check: 8 bytes a key behind a table; CTAs of a row share its keys, y over rows, x
// over stretches of keys. Faults are counted on the device; the first go into the host's memory
// where they are found, and the last CTA to end writes their number behind them.

#include <algorithm>
#include <cstdint>

#include "cache/kv_canary_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerRow = 8;
constexpr int kMaxGridRows = 65535;

__global__ void __launch_bounds__(kThreads)
    MarkKernel(const __grid_constant__ KvMarkParams params) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= params.num_tokens) return;
  const int64_t slot = params.slot_mapping[token];
  if (slot < 0 || slot >= params.num_slots) return;
  params.marks[slot] = {params.sequences[token], params.positions[token]};
}

__global__ void __launch_bounds__(kThreads)
    CheckKernel(const __grid_constant__ KvCheckParams params) {
  for (int row = blockIdx.y; row < params.num_rows; row += gridDim.y) {
    const KeyRange keys = KeysOfRow(params, row);
    for (int64_t key = keys.begin + blockIdx.x * kThreads + threadIdx.x; key < keys.end;
         key += static_cast<int64_t>(gridDim.x) * kThreads) {
      const KeyCheck check = CheckKey(params, row, key);
      if (!check.is_wrong) continue;
      const unsigned long long index = atomicAdd(&params.counters->num_wrong, 1ull);
      if (index >= kMaxCanaryFaults) continue;
      params.findings->first[index] = check.fault;
      __threadfence_system();
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  const unsigned num_ctas = gridDim.x * gridDim.y;
  if (atomicAdd(&params.counters->num_done, 1u) != num_ctas - 1) return;
  params.counters->num_done = 0;
  __threadfence();
  const unsigned long long num_wrong = atomicAdd(&params.counters->num_wrong, 0ull);
  *static_cast<volatile uint64_t*>(&params.findings->num_wrong) = num_wrong;
}

}  // namespace

cudaError_t LaunchMarkKv(const KvMarkParams& params, cudaStream_t stream) {
  if (params.num_tokens <= 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>((params.num_tokens + kThreads - 1) / kThreads);
  MarkKernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t LaunchCheckKv(const KvCheckParams& params, cudaStream_t stream) {
  if (params.num_rows <= 0) return cudaSuccess;
  const dim3 grid(kCtasPerRow, std::min(params.num_rows, kMaxGridRows));
  CheckKernel<<<grid, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace reprise
