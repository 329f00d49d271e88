// Stores states with a grid of CTAs: one CTA per row and kept state. Threads copy 16 bytes each if
// the addresses and the size are multiples of 16, otherwise 2 bytes
// (runner/speculation/keep_states_args.h).
//
// Bound: latency of a launch and of three dependent loads, about 3 us. Beyond some hundred states,
// memory bandwidth.

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/keep_states.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ void CopyState(const KeptState& kept, int64_t bytes) {
  const T* from = reinterpret_cast<const T*>(kept.from);
  T* to = reinterpret_cast<T*>(kept.to);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

// Grid: rows x maximum number of states per row.
__global__ void __launch_bounds__(kThreads)
    KeepStatesKernel(const __grid_constant__ KeepStatesArgs args) {
  const KeptState kept =
      KeptStateOf(args, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (kept.from == nullptr) return;
  const auto ends = reinterpret_cast<uintptr_t>(kept.from) | reinterpret_cast<uintptr_t>(kept.to) |
                    static_cast<uintptr_t>(args.row_bytes);
  if (ends % sizeof(int4) == 0) {
    CopyState<int4>(kept, args.row_bytes);
  } else {
    CopyState<uint16_t>(kept, args.row_bytes);
  }
  if (threadIdx.x == 0) *kept.position_to = kept.position;
}

}  // namespace

absl::Status LaunchKeepStates(const KeepStatesArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckKeepStates(args));
  if (args.num_rows == 0 || args.num_tokens == 0) return absl::OkStatus();
  const dim3 grid(args.num_rows, MaxStatesOfRow(args));
  KeepStatesKernel<<<grid, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchKeepStates");
}

}  // namespace reprise
