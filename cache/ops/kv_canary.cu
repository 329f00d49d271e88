// Marks slots, and checks the marks of the slots in block tables.
//
// Bound of the check: reading 8 bytes per key. Grid: y over rows, x over a row's keys. Faults are
// counted on the device. The threads that find the first faults write them to host memory. The last
// CTA to finish then writes the number of faults.

#include <algorithm>
#include <cstdint>

#include "reprise/base/check.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_canary_args.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kCtasPerRow = 8;
constexpr int kMaxGridRows = 65535;

__global__ void __launch_bounds__(kThreads) MarkKernel(const __grid_constant__ KvMarkArgs args) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (token >= args.num_tokens) return;
  const int64_t slot = args.slot_mapping[token];
  if (slot < 0 || slot >= args.num_slots) return;
  args.marks[slot] = {args.sequences[token], args.positions[token]};
}

__global__ void __launch_bounds__(kThreads) CheckKernel(const __grid_constant__ KvCheckArgs args) {
  for (int row = blockIdx.y; row < args.num_rows; row += gridDim.y) {
    const CheckedKeys keys = KeysOfRow(args, row);
    for (int64_t key = keys.begin + blockIdx.x * kThreads + threadIdx.x; key < keys.end;
         key += static_cast<int64_t>(gridDim.x) * kThreads) {
      const KeyCheck check = CheckKey(args, row, key);
      if (!check.is_wrong) continue;
      const unsigned long long index = atomicAdd(&args.counters->num_wrong, 1ull);
      if (index >= kMaxCanaryFaults) continue;
      args.findings->first[index] = check.fault;
      __threadfence_system();
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  const unsigned num_ctas = gridDim.x * gridDim.y;
  if (atomicAdd(&args.counters->num_done, 1u) != num_ctas - 1) return;
  args.counters->num_done = 0;
  __threadfence();
  const unsigned long long num_wrong = atomicAdd(&args.counters->num_wrong, 0ull);
  *static_cast<volatile uint64_t*>(&args.findings->num_wrong) = num_wrong;
}

}  // namespace

absl::Status LaunchMarkKv(const KvMarkArgs& args, cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(CheckMarkKv(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  const auto grid = static_cast<unsigned>((args.num_tokens + kThreads - 1) / kThreads);
  MarkKernel<<<grid, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "marking keys");
}

absl::Status LaunchCheckKv(const KvCheckArgs& args, cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(CheckCheckKv(args));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("counters", args.counters));
  const dim3 grid(kCtasPerRow, std::min(args.num_rows, kMaxGridRows));
  CheckKernel<<<grid, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "checking keys");
}

}  // namespace reprise
