// The points of the cache benchmark: the bytes moved, their time, and the time of a plain copy of
// the same bytes.

#ifndef TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_
#define TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/benchmarks/device/memory_rates.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {

struct CachePoint {
  std::string operation;
  std::string shape;
  double bytes = 0;     // read and written on the device; over the bus: one way
  Timing timing = {};   // of one call
  double plain_us = 0;  // the time to compare with
  std::string plain;    // description of plain_us
};

// "write", "read", "copy" or "swap". Errors: InvalidArgument for anything else; those of the
// operation.
absl::StatusOr<std::vector<CachePoint>> MeasureCacheOperation(std::string_view operation,
                                                              const MemoryRates& limits);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_
