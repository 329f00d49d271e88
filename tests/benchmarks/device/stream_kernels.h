// Kernels that only move bytes: the baseline of the benchmarks.
//
// Read: every 16-byte word of a buffer is loaded once and folded into a sum that is stored if it
// has an impossible value, so the compiler keeps the loads and nothing is written. Copy: each word
// is loaded and stored. Bound: device memory bandwidth, for buffers much larger than the L2.

#ifndef TESTS_BENCHMARKS_DEVICE_STREAM_KERNELS_H_
#define TESTS_BENCHMARKS_DEVICE_STREAM_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise {

// REQUIRES: pointers aligned to 16 bytes, bytes a multiple of 16. `sink`: 4 bytes that are never
// written.
cudaError_t LaunchStreamRead(const void* data, int64_t bytes, uint32_t* sink, cudaStream_t stream);
cudaError_t LaunchStreamCopy(const void* from, void* to, int64_t bytes, cudaStream_t stream);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_STREAM_KERNELS_H_
