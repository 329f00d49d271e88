// The limits of a GPU for which a tile schedule is planned.

#ifndef REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_
#define REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_

#include "absl/status/statusor.h"

namespace reprise {

// The defaults describe an H100 SXM and an H200, without a limit of shared memory.
struct DeviceLimits {
  // Number of SMs. Results are correct with any number; the actual number of the card is fastest.
  int num_sms = 132;
  // Maximum shared memory per CTA, in bytes. 0: no limit. Compute capability 8.6 and 8.9 have 99
  // KB. For head dims beyond 256, only 16-row tiles with 16-bit MMA types fit, so all rows use
  // these tiles, and no kernel serves float32.
  int max_shared_bytes = 0;
  // 90 means 9.0. Must be the value of the card: attention may reject a schedule that was planned
  // for kernels of another card.
  int compute_capability = 90;
};

// Returns the limits of GPU number `device`, or of the current GPU if `device` is negative. Errors:
// Internal if a CUDA call fails; Unimplemented in builds without CUDA.
absl::StatusOr<DeviceLimits> DeviceLimitsOf(int device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_DEVICE_LIMITS_H_
