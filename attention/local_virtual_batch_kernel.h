// Virtual rows of chunked-local attention on the GPU: one launch that does what
// BuildLocalVirtualBatch() does (attention/local_virtual_batch.h). Torch-free.

#ifndef ATTENTION_LOCAL_VIRTUAL_BATCH_KERNEL_H_
#define ATTENTION_LOCAL_VIRTUAL_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/local_virtual_batch.h"
#include "attention/paged_batch.h"

namespace reprise {

// Fills device buffers from a device batch; the batch over them is LocalVirtualBatchOver()'s. One
// CTA, no synchronisation, may be captured.
//
// Where the host form refuses, the device makes inert: the queries of a row with more queries than
// keys, a negative length or positions beyond int32 see no key. REQUIRES: query_start_loc is
// non-decreasing, from 0, up to num_tokens at most; where it is not, rows are wrong but nothing
// outside the buffers is written.
//
// Errors: cudaErrorInvalidValue where LocalVirtualBatchOver() gives a Status, which says more.
cudaError_t LaunchLocalVirtualBatch(const PagedBatch& batch, int chunk_size,
                                    const LocalBatchBuffers& buffers, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_LOCAL_VIRTUAL_BATCH_KERNEL_H_
