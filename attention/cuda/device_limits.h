// The limits of a GPU that a work map is planned for.

#ifndef REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_
#define REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_

#include "absl/status/statusor.h"

namespace reprise {

// The defaults describe an H100 and an H200.
struct DeviceLimits {
  // Multiprocessors. Results are correct with any number. The number of the card is fastest.
  int num_sms = 132;
  // Bytes of shared memory that a CTA may have. 0: no limit. Compute capability 8.6 and 8.9 have 99 KB.
  // This is not enough for the large tiles of head dims beyond 256, so all rows use decode tiles there.
  int max_shared_bytes = 0;
  // 90 means 9.0. This must be the value of the card: attention may refuse a map that was planned for
  // kernels of another card.
  int compute_capability = 90;
};

// The limits of GPU number `device`, or of the current GPU if `device` is negative. Errors: Internal if CUDA
// does not answer; Unimplemented in builds without CUDA.
absl::StatusOr<DeviceLimits> DeviceLimitsOf(int device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_
