// The limits of the card, measured in the run that uses them: times are reported as shares of them.

#ifndef TESTS_BENCHMARKS_DEVICE_DEVICE_LIMITS_H_
#define TESTS_BENCHMARKS_DEVICE_DEVICE_LIMITS_H_

#include "absl/status/statusor.h"

namespace reprise {

struct DeviceLimits {
  double read_tb_per_s = 0;
  double copy_tb_per_s = 0;  // read + written
};

// Takes about 50 ms and 4 GB of device memory for that time.
absl::StatusOr<DeviceLimits> MeasureDeviceLimits();

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_DEVICE_LIMITS_H_
