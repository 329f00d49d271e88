// From token slots to a block table on the GPU: what FillBlocksOfTokens() does
// (attention/token_table.h). Torch-free.

#ifndef ATTENTION_TOKEN_TABLE_KERNEL_H_
#define ATTENTION_TOKEN_TABLE_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/token_table.h"

namespace reprise {

struct TokenTableGather {
  TokenTableView table = {};           // slots on the device
  const int32_t* table_row = nullptr;  // [num_rows]; absent: row i
  const int32_t* lens = nullptr;       // [num_rows]
  int num_rows = 0;
  int block_size = 1;
  int32_t* entries = nullptr;  // [num_rows, max_blocks]
  int64_t row_stride = 0;
  int max_blocks = 0;
  int32_t* seq_lens = nullptr;      // [num_rows]
  int32_t* num_bad_rows = nullptr;  // [1]
};

// A row that the host form refuses becomes an empty one and is counted; of a block's slots only the
// first is looked at. A memset and a kernel, no synchronisation, may be captured.
// Errors: cudaErrorInvalidValue for an absent array, a negative size or a block_size below 1.
cudaError_t LaunchTokenTableGather(const TokenTableGather& gather, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_TOKEN_TABLE_KERNEL_H_
