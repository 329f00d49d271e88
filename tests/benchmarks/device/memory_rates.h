// The rates at which the card reads and copies memory, measured in the run that reports times as shares of
// them.

#ifndef TESTS_BENCHMARKS_DEVICE_MEMORY_RATES_H_
#define TESTS_BENCHMARKS_DEVICE_MEMORY_RATES_H_

#include "absl/status/statusor.h"

namespace reprise {

struct MemoryRates {
  double read_tb_per_s = 0;
  double copy_tb_per_s = 0;  // read + written
};

// Takes about 50 ms and 4 GB of device memory for that time.
absl::StatusOr<MemoryRates> MeasureMemoryRates();

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_MEMORY_RATES_H_
