// Lets the next kernel of the stream start immediately (base/dependent_launch.cuh) and writes
// later. For tests of kernels that read memory before they wait for the preceding kernel.
//
// Thread safety: thread-safe.

#ifndef REPRISE_ATTENTION_TESTING_LATE_COPY_H_
#define REPRISE_ATTENTION_TESTING_LATE_COPY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise {

// Enqueues a copy of `count` elements from `from` to `to`, which begins `delay_us` microseconds
// after the preceding kernels have ended. Uses one CTA without shared memory, so that the next
// kernel can run concurrently.
cudaError_t LaunchLateCopy(int32_t* to, const int32_t* from, int count, int delay_us,
                           cudaStream_t stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_LATE_COPY_H_
