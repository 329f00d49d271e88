// Work that lets the next kernel of the stream in at once (base/dependent_launch.cuh) and writes
// later: for tests of kernels that read memory before they wait for the kernel before them.
//
// Thread safety: any thread.

#ifndef REPRISE_ATTENTION_TESTING_LATE_COPY_H_
#define REPRISE_ATTENTION_TESTING_LATE_COPY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reprise {

// Enqueues the copy of `count` entries, from -> to, `delay_us` microseconds after its start. One CTA
// without shared memory, so the next kernel has room beside it.
cudaError_t LaunchLateCopy(int32_t* to, const int32_t* from, int count, int delay_us,
                           cudaStream_t stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_LATE_COPY_H_
