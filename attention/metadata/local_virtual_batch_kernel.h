// Builds the virtual rows of chunked-local attention on the GPU in one launch, like
// BuildLocalVirtualBatch() (attention/metadata/local_virtual_batch.h). Torch-free.

#ifndef ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_KERNEL_H_
#define ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/metadata/local_virtual_batch.h"
#include "attention/paged_batch.h"

namespace reprise {

// Fills device buffers from a device batch; LocalVirtualBatchOver() returns the batch over them.
// One CTA, no synchronisation; may be captured.
//
// Rows that the host form refuses are inert on the device: the queries of a row with more queries
// than keys, a negative length or positions beyond int32 see no key. REQUIRES: query_start_loc is
// non-decreasing, from 0, at most num_tokens; otherwise rows are wrong, but nothing outside the
// buffers is written.
//
// Errors: cudaErrorInvalidValue where LocalVirtualBatchOver() returns a Status with details.
cudaError_t LaunchLocalVirtualBatch(const PagedBatch& batch, int chunk_size,
                                    const LocalBatchBuffers& buffers, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_KERNEL_H_
