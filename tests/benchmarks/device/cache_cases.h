// The points of the cache benchmark: what is moved, how long it takes, and how long a plain copy of
// the same bytes takes.

#ifndef TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_
#define TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/benchmarks/device/device_limits.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {

struct CachePoint {
  std::string operation;
  std::string shape;
  double bytes = 0;     // read and written on the device; over the bus: one way
  Timing timing = {};   // of one call
  double plain_us = 0;  // what it is held against
  std::string plain;    // what that is
};

// "write", "read", "copy" or "swap". Errors: InvalidArgument for anything else; those of the
// operation.
absl::StatusOr<std::vector<CachePoint>> MeasureCacheOperation(std::string_view operation,
                                                              const DeviceLimits& limits);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_CACHE_CASES_H_
