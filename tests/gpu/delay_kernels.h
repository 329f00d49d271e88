// The kernel of delayed_launches.h, and two with which a test shows that it finds what it is for. No
// LibTorch.

#ifndef TESTS_GPU_DELAY_KERNELS_H_
#define TESTS_GPU_DELAY_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

// Enqueues a dependent kernel that lets the next one in, waits for the kernel before it, reads
// *microseconds (mapped memory of the host) and sleeps for so long.
absl::Status LaunchDelay(const uint32_t* microseconds, CUstream_st* stream);

enum class ReadOrder : int8_t {
  kAfterWait,
  kBeforeWait,  // against the rule
};

// Enqueues a dependent kernel: *to = *from + 1, of which *from is read before or after the wait for
// the kernel before.
absl::Status LaunchAddOne(const int32_t* from, int32_t* to, ReadOrder order, CUstream_st* stream);

}  // namespace reprise

#endif  // TESTS_GPU_DELAY_KERNELS_H_
