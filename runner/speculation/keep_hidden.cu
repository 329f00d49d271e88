// Keeps hidden states: one CTA per row copies it, 16 bytes a thread where both ends allow it
// (runner/speculation/keep_hidden_args.h).
//
// Bound: latency of a launch and of two loads, about 3 us; bytes beyond some hundred rows.

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "runner/speculation/keep_hidden.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename T>
__device__ void CopyRow(const KeptHidden& kept, int64_t bytes) {
  const T* from = reinterpret_cast<const T*>(kept.from);
  T* to = reinterpret_cast<T*>(kept.to);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    KeepHiddenKernel(const __grid_constant__ KeepHiddenArgs args) {
  const KeptHidden kept = KeptHiddenOf(args, static_cast<int>(blockIdx.x));
  if (kept.from == nullptr) return;
  const auto ends = reinterpret_cast<uintptr_t>(kept.from) | reinterpret_cast<uintptr_t>(kept.to) |
                    static_cast<uintptr_t>(args.row_bytes);
  if (ends % sizeof(int4) == 0) {
    CopyRow<int4>(kept, args.row_bytes);
  } else {
    CopyRow<uint16_t>(kept, args.row_bytes);
  }
}

}  // namespace

absl::Status LaunchKeepHidden(const KeepHiddenArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckKeepHidden(args));
  if (args.num_rows == 0) return absl::OkStatus();
  KeepHiddenKernel<<<args.num_rows, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchKeepHidden");
}

}  // namespace reprise
