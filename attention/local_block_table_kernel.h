// Tables of virtual rows on the GPU: what BuildLocalBlockTable() does
// (attention/local_block_table.h). Torch-free.

#ifndef ATTENTION_LOCAL_BLOCK_TABLE_KERNEL_H_
#define ATTENTION_LOCAL_BLOCK_TABLE_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/local_block_table.h"
#include "attention/paged_batch.h"

namespace reprise {

// Fills device buffers from a device batch. Where the host form refuses a row, that row sees no
// key. No synchronisation, may be captured: the grid depends on local.num_rows alone.
// Errors: cudaErrorInvalidValue where LocalBlockTableOver() gives a Status, which says more.
cudaError_t LaunchLocalBlockTable(const PagedBatch& local, int chunk_size, int block_size,
                                  const LocalTableBuffers& buffers, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_LOCAL_BLOCK_TABLE_KERNEL_H_
