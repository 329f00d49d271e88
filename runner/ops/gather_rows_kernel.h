// The CUDA kernel of runner/ops/gather_rows.h, without LibTorch.

#ifndef RUNNER_OPS_GATHER_ROWS_KERNEL_H_
#define RUNNER_OPS_GATHER_ROWS_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise {

// A copy of bytes: the dtype does not matter.
struct GatherRowsParams {
  const void* table = nullptr;
  int64_t table_stride_bytes = 0;
  const int32_t* indices = nullptr;  // [num_indices]
  void* out = nullptr;
  int64_t out_stride_bytes = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
  int num_indices = 0;
};

cudaError_t LaunchGatherRows(const GatherRowsParams& params, cudaStream_t stream);

}  // namespace reprise

#endif  // RUNNER_OPS_GATHER_ROWS_KERNEL_H_
