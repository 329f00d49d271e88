// Arguments of the kernel of runner/ops/gather_rows.h. Does not depend on LibTorch.

#ifndef REPRISE_RUNNER_OPS_GATHER_ROWS_ARGS_H_
#define REPRISE_RUNNER_OPS_GATHER_ROWS_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Rows are copied as bytes, so the dtype does not matter.
struct GatherRowsArgs {
  const void* table = nullptr;
  int64_t table_stride_bytes = 0;
  const int32_t* indices = nullptr;  // [num_indices]
  void* out = nullptr;
  int64_t out_stride_bytes = 0;
  int64_t row_bytes = 0;
  int64_t first_row = 0;  // index of the table's first row
  int64_t num_rows = 0;
  int num_indices = 0;
};

// Enqueues the kernel. REQUIRES: the arguments pass the checks of GatherRows(). Errors: those of
// CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchGatherRows(const GatherRowsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_GATHER_ROWS_ARGS_H_
