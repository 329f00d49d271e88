// The work between a layer's projection and its attention, in one launch (RotaryWriteKv) and in
// several: norm of heads, rotary embedding, conversion to the cache's type, write.

#ifndef TESTS_BENCHMARKS_DEVICE_PROLOGUE_CASES_H_
#define TESTS_BENCHMARKS_DEVICE_PROLOGUE_CASES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/benchmarks/device/cache_cases.h"

namespace reprise {

// 32 q heads and 8 kv heads of 128, bfloat16: rotary embedding and write into a bfloat16 cache;
// with norms and into an fp8 cache with scales. 1, 32, 256 and 2048 tokens. Cold memory, as for the
// writes of the cache benchmark; compared with the same work without fusion, one launch per
// operation.
absl::StatusOr<std::vector<CachePoint>> MeasurePrologues();

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_PROLOGUE_CASES_H_
