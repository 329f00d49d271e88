// Marks slots, and checks the marks behind block tables.
//
// Bound of the check: 8 bytes a key behind a table; CTAs of a row share its keys, y over rows, x
// over stretches of keys. Faults are counted in memory of the host, by atomics over the bus: none
// if all is well.

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
      // System-wide: the findings are the host's memory.
      auto* const count = reinterpret_cast<unsigned long long*>(&params.findings->num_wrong);
      const unsigned long long index = atomicAdd_system(count, 1ull);
      if (index < kMaxCanaryFaults) params.findings->first[index] = check.fault;
    }
  }
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
