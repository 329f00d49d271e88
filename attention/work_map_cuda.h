// Makes a work map on the device: one small kernel, each step, before the first layer.
//
//   REPRISE_RETURN_IF_ERROR(LaunchBuildWorkMap(batch, WindowOf(layer), map, stream));
//
// Pointers of batch and map are on the device of `stream`. May be captured: everything that changes
// from step to step is read from the arrays. The host twin is BuildWorkMap()
// (attention/work_map_build.h), the same code.
//
// Errors: InvalidArgument if the capacities of the batch exceed those of the map; Internal if the
// launch fails; Unimplemented in builds without CUDA.
//
// Cost: 2.2 us on the device beyond the launch for a row, 2.4 for 256; no synchronisation, no
// allocation.

#ifndef ATTENTION_WORK_MAP_CUDA_H_
#define ATTENTION_WORK_MAP_CUDA_H_

#include "absl/status/status.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/work_map.h"
#include "attention/work_map_rows.h"

struct CUstream_st;

namespace reprise {

// `stream` is a cudaStream_t.
absl::Status LaunchBuildWorkMap(const PagedBatch& batch, const LayerWindow& window,
                                const WorkMap& map, CUstream_st* stream);
absl::Status LaunchBuildWorkMap(const RaggedBatch& batch, const LayerWindow& window,
                                const WorkMap& map, CUstream_st* stream);

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_CUDA_H_
